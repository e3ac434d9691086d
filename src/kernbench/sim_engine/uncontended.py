"""Uncontended latency of recorded transfers: they are sent again on an otherwise idle fabric.

Equal groups of transfers (same routes, sizes, channels and relative times) are simulated once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernbench.sim_engine.fabric import Fabric, Transfer
from kernbench.sim_engine.fabric.activity import Errand, Piece
from kernbench.sim_engine.fabric.model import Network


class Uncontended:
    """Measures transfers on a private, idle copy of the network."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._fabric = Fabric(network)
        self._measured: dict[tuple[object, ...], float] = {}

    def queue_ns(self, errand: Errand) -> float:
        """By how much contention prolonged a group. Transfers that depart after all before have ended are separate."""
        return sum(max(0.0, _lasted_ns(batch) - self._uncontended_ns(batch)) for batch in _batches(errand.pieces))

    def transfer_ns(self, errand: Errand) -> float:
        """How long its bytes take over the narrowest link, or memory channels, of their path."""
        network, total = self._network, 0.0
        for piece in errand.pieces:
            rates = [rate for rate in (network.bw_gbs[link] for link in piece.route.links) if rate is not None]
            if piece.reads or piece.writes:
                channels, burst_bytes, burst_ns, _ = network.channel_specs[_memory_of(piece)]
                rates.append(channels * burst_bytes / burst_ns)
            total += piece.nbytes / min(rates)
        return total

    def _uncontended_ns(self, batch: Sequence[Piece]) -> float:
        begin = batch[0].at_ns
        key = tuple(
            (id(piece.route), piece.nbytes, piece.reads, piece.writes, piece.block % 4096, piece.at_ns - begin)
            for piece in batch
        )
        cached = self._measured.get(key)
        if cached is None:
            cached = self._measured[key] = self._measured_ns(batch, begin)
        return cached

    def _measured_ns(self, batch: Sequence[Piece], begin: float) -> float:
        fabric = self._fabric
        now = float(int(fabric.now) + 4096)  # after all earlier transfers
        done: list[Transfer] = []
        for piece in batch:
            if piece.reads or piece.writes:  # earlier measurements must cause no turnaround
                group = fabric.engine.groups[_memory_of(piece)]
                group.turn_to([0] * (group.mask + 1))
        for piece in batch:
            shift = self._network.flit_bytes.bit_length() - 1
            address = piece.block << shift
            fabric.inject(
                piece.route,
                piece.nbytes,
                now + piece.at_ns - begin,
                read_from=address if piece.reads else None,
                write_to=address if piece.writes else None,
                on_done=done.append,
            )
        fabric.run()
        return max(transfer.done_ns for transfer in done) - now


def _memory_of(piece: Piece) -> int:
    """The node whose channels a piece reads or writes."""
    return piece.route.nodes[0] if piece.reads else piece.route.nodes[-1]


def _batches(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Pieces in order of setting out, cut where one sets out when all before have ended."""
    batch: list[Piece] = []
    end = 0.0
    for piece in sorted(pieces, key=lambda piece: (piece.at_ns, piece.done_ns)):
        if batch and piece.at_ns >= end:
            yield batch
            batch = []
        batch.append(piece)
        end = max(end, piece.done_ns)
    if batch:
        yield batch


def _lasted_ns(batch: Sequence[Piece]) -> float:
    return max(piece.done_ns for piece in batch) - batch[0].at_ns
