"""Lone transfers on links with finite buffers are planned in closed form: against moving every flit, and against an
obvious model of the rules. Sizes and gaps are such that many are planned, some are split, and some follow while slots
are on their way back.
"""

from random import Random

import pytest
from tests.oracle.naive_buffers import NaiveBuffers
from tests.oracle.test_buffers_against_naive import RULES, mesh, path, rectangle

from kernbench.sim_engine.fabric import Buffers, Fabric, Network, buffered_forecast, buffered_trains

INFINITY = float("inf")
ANY = [
    Buffers(64, 9.0),
    Buffers(8, 2.0),
    Buffers(16, 9.0, channels=2, ownership="packet"),
    Buffers(6, 1.0, channels=2, ownership="packet", packet_bytes=256),
    Buffers(12, 3.0, order="voq"),
    *RULES,
]
PLACES = [(x, y) for x in range(3) for y in range(3)]


@pytest.fixture(autouse=True)
def _plan_whatever_can_be_planned(monkeypatch):
    monkeypatch.setattr(buffered_trains, "WORTH_PLANNING", 0)
    monkeypatch.setattr(buffered_trains, "WORTH_PLANNING_COMPILED", 0)
    monkeypatch.setattr(buffered_trains, "SHORTEST_PAUSE", 0)
    monkeypatch.setattr(buffered_trains, "LONGEST_PAUSE", 1)


def same_links(a, b):
    """Whether links end in the same state, and the longest waits were the same."""
    return (
        list(a.engine.links.free) == list(b.engine.links.free)
        and list(a.engine.links.users) == list(b.engine.links.users)
        and sorted(a.engine.links.take_waits()) == sorted(b.engine.links.take_waits())
    )


@pytest.mark.parametrize("compile_after", [0, INFINITY], ids=["compiled", "plain"])
def test_sparse_traffic_ends_when_the_obvious_model_says(compile_after):
    planned = split = 0
    for seed in range(1):
        for buffers in ANY:
            random = Random(seed)
            network = mesh(3, buffers, random)
            latest, sizes = random.choice([60, 400, 3000]), [random.randint(1, 6000) for _ in range(3)]
            sent = [
                (path(*random.sample(PLACES, 2)), random.choice(sizes), float(random.randint(0, latest)))
                for _ in range(20)
            ]
            fast, naive = Fabric(network, compile_after=compile_after), NaiveBuffers(network)
            slow = Fabric(network, mode="flits", compile_after=compile_after)
            ends = [[each.inject(*args) for args in sent] for each in (fast, slow, naive)]
            for each in (fast, slow, naive):
                each.run()
            assert len({tuple(one.done_ns for one in group) for group in ends}) == 1, (seed, buffers)
            assert same_links(fast, slow), (seed, buffers)
            planned, split = planned + fast.planned, split + fast.split
    assert planned > 100
    assert split > 20


def with_memories(buffers, random):
    """A mesh whose ports have memories, but for one row."""
    before = Network.set_buffers

    def add_memories(network, rules):
        for x, y in PLACES:
            if y < 2:
                channels, burst_ns = random.choice([2, 4]), random.choice([2.0, 8.0])
                network.add_channels(("p", x, y), channels, burst_ns, random.choice([0.0, 3.0]))
        before(network, rules)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Network, "set_buffers", add_memories)
        return mesh(3, buffers, random)


def accesses(random, latest):
    """Reads and writes of memories, plain transfers, and some whose senders wait."""
    sizes = [*(random.randint(1, 100) * 64 for _ in range(2)), random.randint(1, 3000)]
    for _ in range(30):
        (src, dst), kind = random.sample(PLACES, 2), random.random()
        options = {}
        if src[1] < 2 and kind < 0.4:
            options["read_from"] = random.choice([0, 64, 4096])
        elif dst[1] < 2 and kind < 0.8:
            options["write_to"] = random.choice([0, 64, 4096])
        elif kind > 0.9:
            options["on_left"] = True
        yield path(src, dst), random.choice(sizes), float(random.randint(0, latest)), options


def test_accesses_of_memories_and_multicasts_are_as_when_every_flit_is_moved():
    planned = 0
    for number, buffers in enumerate(ANY):
        seed = 1 + 2 * (number % 2)
        random = Random(seed)
        network, latest = with_memories(buffers, random), random.choice([60, 400, 3000, 8000])
        sent = list(accesses(random, latest))
        casts = []
        if buffers.ownership == "flit":
            casts = [(rectangle(random.choice(PLACES), random), 640, float(random.randint(0, latest)))]
        looks = sorted(float(random.randint(0, latest)) for _ in range(3)) if seed % 3 == 0 else []
        found = []
        for mode in ("adaptive", "flits"):
            fabric, left = Fabric(network, mode=mode, compile_after=INFINITY), []
            transfers = [
                fabric.inject(*args, **(options if "on_left" not in options else {"on_left": left.append}))
                for *args, options in sent
            ]
            transfers += [transfer for cast in casts for transfer in fabric.multicast(*cast)]
            for at in looks:
                fabric.run(at)
                fabric.split_all(fabric.now, INFINITY)
            fabric.run()
            busy = [group.busy_for(0.0) for group in fabric.engine.groups.values()]
            found.append((fabric, [each.done_ns for each in transfers], left, busy))
        (fast, *one), (slow, *other) = found
        assert one == other, (seed, buffers)
        assert same_links(fast, slow), (seed, buffers)
        planned += fast.planned
    assert planned > 100


def line(buffers, *rates):
    """Links of some rates one behind another, 8 ns long."""
    network = Network(flit_bytes=32)
    for node in range(len(rates) + 1):
        network.add_node(node)
    for node, rate in enumerate(rates):
        network.add_link(node, node + 1, rate, 8.0)
    network.set_buffers(buffers)
    return network


def random_line(random):
    """Links of any rates, some in series, with a memory at one end or at none; and whether there are series."""
    rates = [random.choice([8.0, 16.0, 21.3, 32.0, 64.0]) for _ in range(random.randint(2, 6))]
    network = Network(flit_bytes=32)
    for node in range(len(rates) + 1):
        network.add_node(node, random.choice([0.0, 1.0, 2.5]))
    for node, rate in enumerate(rates):
        network.add_link(node, node + 1, rate, random.choice([0.0, 1.3, 8.0]))
    options, series = {}, 0
    if random.random() < 0.3:
        end, options = random.choice([(0, {"read_from": 0}), (len(rates), {"write_to": 64})])
        network.add_channels(end, random.choice([1, 4, 8]), random.choice([0.5, 4.0, 11.0]))
    for node in range(1, len(rates)):
        if random.random() < 0.15:
            network.add_series(node - 1, node, node + 1)
            series += 1
    slots = random.choice([1, 2, 3, 7, 16, 40])
    channels, packet_bytes = random.choice([(1, 0), (1, 0), (2, 0), (2, 256)])
    ownership = "packet" if channels > 1 else "flit"
    order, arbitration = random.choice(["fifo", "voq"]), random.choice(["asking", "round_robin"])
    credit_ns = random.choice([0.0, 3.0, 9.5])
    network.set_buffers(Buffers(slots, credit_ns, 1, channels, order, ownership, packet_bytes, arbitration))
    return network, list(range(len(rates) + 1)), options, series


@pytest.mark.parametrize("compile_after", [0, INFINITY], ids=["compiled", "plain"])
def test_on_any_path_a_lone_transfer_is_planned_and_ends_when_the_obvious_model_says(compile_after):
    """On paths that narrow, buffers fill and hold flits up; where credits are slow, they do on any path."""
    for seed in range(60):
        random = Random(seed)
        network, along, options, series = random_line(random)
        size = random.choice([random.randint(1, 2000), random.randint(1, 30_000)])
        fast, slow, naive = (
            Fabric(network, compile_after=compile_after),
            Fabric(network, mode="flits", compile_after=compile_after),
            NaiveBuffers(network),
        )
        ends = [each.inject(along, size, 0.0, **options) for each in (fast, slow)]
        for each in (fast, slow):
            each.run()
        assert ends[0].done_ns == ends[1].done_ns, seed
        assert fast.engine.buffered.late_credits(ends[0].done_ns) == slow.engine.buffered.late_credits(
            ends[0].done_ns
        ), seed
        assert same_links(fast, slow), seed
        assert fast.planned == 1 or "write_to" in options, seed
        if not options and not series:
            message = naive.inject(along, size, 0.0)
            naive.run()
            assert ends[0].done_ns == message.done_ns, seed


def test_transfers_that_come_while_buffers_are_full_see_what_they_would_have_seen():
    """One path that narrows, and further transfers on parts of it, some of them after the first."""
    split = 0
    for seed in range(25):
        random, found = Random(seed), []
        network, along, options, _ = random_line(random)
        sent = [(along, random.randint(200, 20_000), 0.0, options)]
        for _ in range(3):
            latest = random.choice([50, 400, 3000])
            sent.append((along, random.randint(1, 4000), float(random.randint(1, latest)), options))
        for mode in ("adaptive", "flits"):
            fabric = Fabric(network, mode=mode, compile_after=INFINITY)
            transfers = [fabric.inject(*args, **more) for *args, more in sent]
            fabric.run()
            found.append((fabric, [each.done_ns for each in transfers]))
        (fast, one), (slow, other) = found
        assert one == other, seed
        assert same_links(fast, slow), seed
        split += fast.split
    assert split > 20


def test_few_flits_of_a_long_transfer_are_worked_out():
    # The second link is the slow one: the first buffer fills, and then both go at its pace of 2 ns per flit. The first
    # flit arrives after 1 + 8 + 2 + 8 + 1 + 8 ns.
    fabric = Fabric(line(Buffers(16, 9.0), 32.0, 16.0, 32.0), compile_after=INFINITY)
    transfer, taken = fabric.inject(range(4), 32 * 1_000_000, 0.0), []
    with pytest.MonkeyPatch.context() as patch:
        take = buffered_forecast._Passing.take
        patch.setattr(buffered_forecast._Passing, "take", lambda self, ready: (taken.append(ready), take(self, ready)))
        fabric.run()
    assert fabric.planned == 1
    assert transfer.done_ns == 28 + 2 * 999_999
    assert len(taken) < 100


def test_bytes_that_are_written_and_bytes_that_are_not_take_one_path():
    # All 40 arrive after 1 + 8 + 39 + 1 + 8 ns; the last burst takes 5 ns.
    network = Network(flit_bytes=32)
    for node in range(3):
        network.add_node(node)
    for node in range(2):
        network.add_link(node, node + 1, 32.0, 8.0)
    network.add_channels(2, 8, 5.0)
    network.set_buffers(Buffers(40, 1.0))
    fabric = Fabric(network, compile_after=INFINITY)
    plain, write = fabric.inject(range(3), 32 * 40, 0.0), fabric.inject(range(3), 32 * 40, 1000.0, write_to=0)
    fabric.run()
    assert (plain.done_ns, write.done_ns, fabric.planned) == (57.0, 1062.0, 2)


def test_a_transfer_that_follows_sees_the_slots_that_are_on_their_way_back():
    # The first ends at 9 + 27 ns; the credits of its last flits are back at 27 + 30 ns, and the second waits for them.
    def ends(mode):
        fabric, done = Fabric(line(Buffers(30, 30.0), 32.0, 32.0, 32.0), mode=mode, compile_after=INFINITY), []

        def send_again(first):
            done.append(fabric.inject(range(4), 32 * 30, first.done_ns))

        done.append(fabric.inject(range(4), 32 * 30, 0.0, on_done=send_again))
        fabric.run()
        return [each.done_ns for each in done], fabric.planned

    assert ends("adaptive")[0] == ends("flits")[0]
    assert ends("adaptive")[1] == 1
    assert ends("flits")[1] == 0
