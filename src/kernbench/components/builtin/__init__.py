"""The blocks that ship with KernBench."""
