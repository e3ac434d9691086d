"""What host code calls `torch`."""
