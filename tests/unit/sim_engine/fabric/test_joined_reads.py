"""Reads that depart together: the same times, counters and order of ends as when each is a transfer of its own."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kernbench.sim_engine.fabric import Fabric, JoinedRead, Network
from kernbench.sim_engine.fabric.loop_reads import ChannelsInLoop
from kernbench.sim_engine.fabric.transfers import Transfer

pytest.importorskip("numba")


def star(readers: int, memories: int, granule_bytes: int = 0, penalty_ns: float = 0.0, routers: int = 3) -> Network:
    """Memories along a line of routers, readers too, so that replies meet on the way."""
    network = Network()
    for router in range(routers):
        network.add_node(f"r{router}", 2.0)
    for router in range(routers - 1):
        network.add_link(f"r{router}", f"r{router + 1}", 256.0, 0.5)
        network.add_link(f"r{router + 1}", f"r{router}", 256.0, 0.5)
    for kind, count in (("p", readers), ("m", memories)):
        for at in range(count):
            network.add_node(f"{kind}{at}", 1.0)
            network.add_link(f"r{at % routers}", f"{kind}{at}", 256.0)
            network.add_link(f"{kind}{at}", f"r{at % routers}", 256.0)
    for at in range(memories):
        network.add_channels(f"m{at}", 4, 8.0, penalty_ns, granule_bytes=granule_bytes, open_ns=3.0)
    return network


def path(start: str, end: str, routers: int = 3) -> tuple[str, ...]:
    first, last = int(start[1:]) % routers, int(end[1:]) % routers
    step = 1 if last >= first else -1
    return (start, *(f"r{router}" for router in range(first, last + step, step)), end)


class Traffic:
    """Requests of readers, each the reaction to the end of the one before; writes and lone reads between them."""

    def __init__(self, network: Network, seed: int, *, joined: bool, looks_ns: float = 0.0, **options: Any) -> None:
        self.fabric = Fabric(network, **options)
        self._joined, self._network = joined, network
        self._rng = random.Random(seed)
        self.ends: list[tuple[object, float]] = []
        self.looks: list[object] = []
        self.lent = 0
        self._readers = sum(str(name).startswith("p") for name in network.names)
        self._memories = sum(str(name).startswith("m") for name in network.names)
        self._plans = [self._plan(reader) for reader in range(self._readers)]
        for reader in range(self._readers):
            self._next(reader, None)
        at = 0.0
        while looks_ns and self.fabric.next_time() < float("inf"):
            at += looks_ns
            self.fabric.run(at)
            self.looks.append(self._seen())
        self.fabric.run()
        self.looks.append(self._seen())

    def _seen(self) -> object:
        counted = [self.fabric.channel_counters(f"m{at}") for at in range(self._memories)]
        return (
            self.fabric.all_link_counters(),
            counted,
            [self.fabric.traffic_by(f"p{at}") for at in range(self._readers)],
        )

    def _plan(self, reader: int) -> list[tuple[str, float, list[tuple[int, int, int]]]]:
        """Requests: what, after how long, and of each part memory, address and bytes."""
        rng, plan = self._rng, []
        for _ in range(rng.randint(2, 5)):
            kind = rng.choice(["together", "together", "together", "read", "write"])
            parts = rng.randint(8, 20) if kind == "together" else 1
            sizes = [rng.choice([32, 100, 128, 256, 300, 512, 1500, 5000]) for _ in range(parts)]
            rows = [(rng.randrange(self._memories), 256 * rng.randrange(64), size) for size in sizes]
            plan.append((kind, rng.choice([0.0, 0.0, 1.0, 2.5, 40.0]), rows))
        return plan

    def _next(self, reader: int, done: Transfer | None) -> None:
        now = self.fabric.now
        if done is not None:
            self.ends.append((done.tag, now))
        self.lent += sum(type(group) is ChannelsInLoop for group in self.fabric.engine.groups.values())
        if not self._plans[reader]:
            return
        kind, rest_ns, rows = self._plans[reader].pop(0)
        tag, at, last = (reader, len(self._plans[reader])), now + rest_ns, len(rows)

        def one_done(transfer: Transfer) -> None:
            nonlocal last
            last -= 1
            if not last:
                self._next(reader, transfer)

        reads = []
        for memory, address, nbytes in rows:
            there = self._network.route(path(f"p{reader}", f"m{memory}"))
            back = self._network.route(path(f"m{memory}", f"p{reader}"))
            seq = next(self.fabric.sequence)
            if kind == "write":
                self.fabric.inject(there, nbytes, at, write_to=address, on_done=one_done, tag=tag, seq=seq)
            else:
                reads.append(JoinedRead(back, nbytes, at + there.control_ns, address, 0, seq))
        if kind == "together" and self._joined:
            self.fabric.note_reads(len(reads))
        if kind == "together" and self._joined and self.fabric.may_join_reads(len(reads)):
            self.fabric.inject_reads(reads, lambda transfer: self._next(reader, transfer), tag)
            return
        for route, nbytes, arrives_ns, address, _, seq in reads:
            self.fabric.inject(route, nbytes, arrives_ns, read_from=address, on_done=one_done, tag=tag, seq=seq)


@pytest.mark.parametrize("seed", range(40))
def test_they_take_the_times_of_single_reads(seed: int) -> None:
    network = star(2 + seed % 5, 1 + seed % 4, granule_bytes=(0, 64)[seed % 2])
    together = Traffic(network, seed, joined=True, compile_after=0, mode=("adaptive", "flits")[seed // 2 % 2])
    alone = Traffic(network, seed, joined=False, compile_after=float("inf"), mode="flits")
    assert together.ends == alone.ends
    assert together.looks == alone.looks
    assert together.lent > 0 == alone.lent


@pytest.mark.parametrize("seed", range(6))
def test_counters_that_are_read_on_the_way_are_those_of_single_reads(seed: int) -> None:
    network = star(4, 3, granule_bytes=64)
    together = Traffic(network, seed, joined=True, looks_ns=37.0, compile_after=0)
    alone = Traffic(network, seed, joined=False, looks_ns=37.0, compile_after=float("inf"), mode="flits")
    assert together.ends == alone.ends
    assert together.looks == alone.looks


def test_where_turning_costs_each_read_is_a_transfer_of_its_own() -> None:
    network = star(3, 2, penalty_ns=5.0)
    together = Traffic(network, 1, joined=True, compile_after=0)
    assert together.lent == 0
    assert together.ends == Traffic(network, 1, joined=False, compile_after=float("inf"), mode="flits").ends


def test_more_reads_than_there_was_room_for() -> None:
    """2,400 rows in 100 requests, nearly at once: more rows, queues and requests than the loop begins with room for."""
    network = star(4, 4)
    ends = []
    for joined in (True, False):
        fabric = Fabric(network, compile_after=0 if joined else float("inf"), mode="flits")
        done: list[tuple[object, float]] = []
        for request in range(100):
            reader, left = request % 4, [24]

            def one_done(
                transfer: Transfer, left: list[int] = left, done: list[Any] = done, fabric: Fabric = fabric
            ) -> None:
                left[0] -= 1
                if not left[0]:
                    done.append((transfer.tag, fabric.now))

            reads = []
            for row in range(24):
                memory, seq = (row * 7 + reader) % 4, next(fabric.sequence)
                at = 1.0 * request + network.route(path(f"p{reader}", f"m{memory}")).control_ns
                reads.append(JoinedRead(network.route(path(f"m{memory}", f"p{reader}")), 512, at, 512 * row, 0, seq))
            if joined:
                assert fabric.may_join_reads(24)
                fabric.inject_reads(
                    reads, lambda t, done=done, fabric=fabric: done.append((t.tag, fabric.now)), request
                )  # type: ignore[misc]
            else:
                for route, nbytes, at, address, _, seq in reads:
                    fabric.inject(route, nbytes, at, read_from=address, on_done=one_done, tag=request, seq=seq)
        fabric.run()
        ends.append(done)
    assert ends[0] == ends[1]
    assert len(ends[0]) == 100
