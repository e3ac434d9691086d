"""The page: a server on the run folders it is given, and the browser's own code under `static/`."""
