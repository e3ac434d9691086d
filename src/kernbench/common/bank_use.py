"""What was moved between a block and a memory with channels."""

from __future__ import annotations

from typing import NamedTuple


class BankUse(NamedTuple):
    """In whole bursts, as channels serve them, and each way in bytes, as links carry them."""

    burst_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def plus(self, more: BankUse) -> BankUse:
        return BankUse(
            self.burst_bytes + more.burst_bytes,
            self.read_bytes + more.read_bytes,
            self.written_bytes + more.written_bytes,
        )

    def minus(self, less: BankUse) -> BankUse:
        return BankUse(
            self.burst_bytes - less.burst_bytes,
            self.read_bytes - less.read_bytes,
            self.written_bytes - less.written_bytes,
        )


NOTHING = BankUse()
