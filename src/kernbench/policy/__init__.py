"""Pure functions over the compiled machine: where an address points, where a buffer goes, which way bytes travel."""
