"""Hardware blocks of a user's own, outside KernBench. A machine names them as `my_blocks.module:Class`."""
