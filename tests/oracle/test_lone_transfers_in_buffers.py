"""Lone transfers on links with finite buffers are planned in closed form: against moving every flit, and against an
obvious model of the rules. Sizes and gaps are such that many are planned, some are split, and some follow while slots
are on their way back.
"""

from random import Random

import pytest
from tests.oracle.naive_buffers import NaiveBuffers
from tests.oracle.test_buffers_against_naive import RULES, mesh, path, rectangle

from kernbench.sim_engine.fabric import Buffers, Fabric, Network, buffered_trains

INFINITY = float("inf")
ASKING = [
    Buffers(64, 9.0),
    Buffers(8, 2.0),
    Buffers(16, 9.0, channels=2, ownership="packet"),
    Buffers(6, 1.0, channels=2, ownership="packet", packet_bytes=256),
    Buffers(12, 3.0, order="voq"),
    *(rules for rules in RULES if rules.arbitration == "asking"),
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
    for seed in range(4):
        for buffers in ASKING:
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
    for seed in range(8):
        for buffers in ASKING:
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
    assert planned > 200


def line(buffers, *rates):
    """Links of some rates one behind another, 8 ns long."""
    network = Network(flit_bytes=32)
    for node in range(len(rates) + 1):
        network.add_node(node)
    for node, rate in enumerate(rates):
        network.add_link(node, node + 1, rate, 8.0)
    network.set_buffers(buffers)
    return network


def test_a_lone_transfer_is_planned_where_no_flit_waits_for_a_slot():
    # A slot is used for 9 ns on the link and in the buffer, and 9 ns more until it is credited: 18 flits of 1 ns.
    def planned(slots, flits, *rates):
        fabric = Fabric(line(Buffers(slots, 9.0), *rates), compile_after=INFINITY)
        fabric.inject(range(len(rates) + 1), 32 * flits, 0.0)
        fabric.run()
        return fabric.planned

    assert planned(18, 100, 32.0, 32.0, 32.0) == 1
    assert planned(17, 100, 32.0, 32.0, 32.0) == 0
    assert planned(17, 17, 32.0, 32.0, 32.0) == 1  # each flit has a slot
    assert planned(18, 100, 16.0, 32.0, 32.0) == 1
    assert planned(18, 100, 32.0, 16.0, 32.0) == 0  # the first buffer fills


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
