"""KernBench: how long a kernel takes on an accelerator that is not built yet, whether it is right, and where the time went."""

__version__ = "0.1.0"
