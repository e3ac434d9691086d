"""Seeds of random numbers on the device: `torch.manual_seed` and `torch.Generator`.

A generator is a seed and a count of its draws; every draw has a seed of its own. Each rank has a default generator, as
each process has in PyTorch. The numbers are not PyTorch's.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from greenlet import getcurrent, greenlet

from kernbench.common.errors import UsageError

DEFAULT_SEED = 67280421310721  # PyTorch's
_STEP = 0x9E3779B97F4A7C15


class Generator:
    """`torch.Generator`. `device` is accepted for compatibility: its numbers are the same on every device."""

    def __init__(self, device: object = None) -> None:
        self._seed = DEFAULT_SEED
        self._draws = 0

    def manual_seed(self, seed: int) -> Generator:
        """Begin again with a seed."""
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise UsageError(f"manual_seed: the seed is {seed!r}", hint="give a whole number")
        self._seed, self._draws = seed, 0
        return self

    def initial_seed(self) -> int:
        return self._seed

    def get_state(self) -> tuple[int, int]:
        return self._seed, self._draws

    def set_state(self, state: tuple[int, int]) -> Generator:
        self._seed, self._draws = state
        return self

    def next_seed(self) -> int:
        """The seed of the next draw: 31 bits, as kernels take."""
        self._draws += 1
        mixed = (self._seed + self._draws * _STEP) & (2**64 - 1)
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & (2**64 - 1)
        return (mixed ^ mixed >> 31) & (2**31 - 1)


class RandomState:
    """The default generator of each program."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[greenlet, Generator] = WeakKeyDictionary()

    def current(self) -> Generator:
        return self._of.setdefault(getcurrent(), Generator())
