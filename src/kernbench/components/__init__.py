"""Hardware blocks, one per file. They know the fabric only through the context they are given."""
