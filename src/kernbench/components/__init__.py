"""Hardware blocks, one a file. They know the fabric only through the context they are given."""
