"""Tables of `auto`, measured on machines of the package."""
