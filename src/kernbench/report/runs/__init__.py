"""A run on disk: write it, open it, list what there is."""
