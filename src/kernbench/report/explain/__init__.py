"""Where the time of a run went: the critical path, what lanes waited for, what would bound the run otherwise."""
