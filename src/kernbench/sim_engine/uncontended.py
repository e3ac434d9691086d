"""Uncontended latency of recorded transfers: they are sent again on an otherwise idle fabric.

Equal groups of transfers (same routes, sizes, channels and relative times) are simulated once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernbench.sim_engine.fabric import Fabric, Transfer
from kernbench.sim_engine.fabric.activity import SeenTransfer, TransferGroup
from kernbench.sim_engine.fabric.model import Network


class Uncontended:
    """Measures transfers on a private, idle copy of the network."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._fabric = Fabric(network)
        self._measured: dict[tuple[object, ...], float] = {}

    def queue_ns(self, group: TransferGroup) -> float:
        """By how much contention prolonged a group. Transfers that depart after all before have ended are separate."""
        return sum(max(0.0, _lasted_ns(batch) - self._uncontended_ns(batch)) for batch in _batches(group.pieces))

    def transfer_ns(self, group: TransferGroup) -> float:
        """How long its bytes take over the narrowest link, or memory channels, of their path. The pieces of an access
        that is split over channels use channels, and links to them, together.
        """
        network, total = self._network, 0.0
        for piece in group.pieces:
            memory = _memory_of(piece) if piece.reads or piece.writes else -1
            spec = network.channel_specs.get(memory)
            at_once = spec[0] if spec is not None and spec[4] else 1  # channels that pieces use together
            rates = [] if spec is None else [spec[0] * spec[1] / spec[2]]
            for link in piece.route.links:
                rate, framing = network.rate[link]
                if rate is not None:
                    rate *= 1.0 if framing is None else framing.efficiency
                    rates.append(rate * at_once if memory in network.link_ends[link] else rate)
            total += piece.nbytes / min(rates)
        return total

    def _uncontended_ns(self, batch: Sequence[SeenTransfer]) -> float:
        begin = batch[0].at_ns
        key = tuple(
            (
                id(piece.route),
                piece.nbytes,
                piece.reads,
                piece.writes,
                self._place_of(piece),
                piece.at_ns - begin,
                piece.slot,
                piece.granules,
            )
            for piece in batch
        )
        cached = self._measured.get(key)
        if cached is None:
            cached = self._measured[key] = self._measured_ns(batch, begin)
        return cached

    def _place_of(self, piece: SeenTransfer) -> int:
        """The channel that a piece begins on; 0 for one that uses none."""
        if not (piece.reads or piece.writes):
            return 0
        return self._fabric.engine.groups[_memory_of(piece)].channel_of(piece.block)

    def _measured_ns(self, batch: Sequence[SeenTransfer], begin: float) -> float:
        fabric = self._fabric
        now = float(int(fabric.now) + 4096)  # after all earlier transfers
        done: list[Transfer] = []
        for piece in batch:
            if piece.reads or piece.writes:  # earlier measurements must cause no turnaround
                group = fabric.engine.groups[_memory_of(piece)]
                group.set_directions([0] * group.channels)
        for piece in batch:
            address = (
                fabric.engine.groups[_memory_of(piece)].address_of(piece.block) if piece.reads or piece.writes else 0
            )
            fabric.inject(
                piece.route,
                piece.nbytes,
                now + piece.at_ns - begin,
                read_from=address if piece.reads else None,
                write_to=address if piece.writes else None,
                on_done=done.append,
                slot=piece.slot,
                granules=piece.granules,
            )
        fabric.run()
        return max(transfer.done_ns for transfer in done) - now


def _memory_of(piece: SeenTransfer) -> int:
    """The node whose channels a piece reads or writes."""
    return piece.route.nodes[0] if piece.reads else piece.route.nodes[-1]


def _batches(pieces: Sequence[SeenTransfer]) -> Iterator[list[SeenTransfer]]:
    """Pieces in order of departure, cut where one departs when all before have ended."""
    batch: list[SeenTransfer] = []
    end = 0.0
    for piece in sorted(pieces, key=lambda piece: (piece.at_ns, piece.done_ns)):
        if batch and piece.at_ns >= end:
            yield batch
            batch = []
        batch.append(piece)
        end = max(end, piece.done_ns)
    if batch:
        yield batch


def _lasted_ns(batch: Sequence[SeenTransfer]) -> float:
    return max(piece.done_ns for piece in batch) - batch[0].at_ns
