"""The web page: a server for run folders, and the browser code under `static/`."""
