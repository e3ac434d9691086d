"""Plain networks: grids of tiles, joined by one or more networks on chip."""

import pytest

from kernbench.common.errors import TopologyError
from kernbench.sim_engine.fabric import Fabric
from kernbench.sim_engine.plain_network import plain_network
from kernbench.topology import load_topology

WIRE = {"bw_gbs": 32.0, "propagation_ns": 8.0}


def described(nocs, w=3, h=2, **more):
    network = {
        "name": "small", "flit_bytes": 32, "grid": {"w": w, "h": h}, "nocs": nocs,
        "links": {"router": WIRE, "injection": WIRE, "ejection": WIRE},
        "requests": {"hop_ns": 9.0, "service_ns": 100.0}, "barriers": {"after_data_ns": 0.0, "least_ns": 0.0},
    }  # fmt: skip
    return {"network": network, **more}


ONE_WAY = {"name": "a", "x": "forward", "y": "forward", "wrap": "torus"}


def test_a_one_way_torus_goes_the_long_way_round():
    topology = load_topology(described([ONE_WAY]))
    assert topology.path("a", (1, 0), (0, 0)) == (
        "a.in.1.0", "a.router.1.0", "a.router.2.0", "a.router.0.0", "a.out.0.0"
    )  # fmt: skip
    # From tile 2 to tile 0 it wraps, and is in layer 1 from there on; the way out is of the other dimension.
    assert topology.layers_of(topology.path("a", (1, 0), (0, 0))) == (0, 0, 1, 0)


def test_a_mesh_takes_the_short_way_along_its_first_dimension():
    topology = load_topology(described([{"name": "a", "first": "y"}]))
    assert topology.path("a", (2, 1), (0, 0)) == (
        "a.in.2.1", "a.router.2.1", "a.router.2.0", "a.router.1.0", "a.router.0.0", "a.out.0.0"
    )  # fmt: skip


def asked(topology, src, dst):
    """When a lone request is served."""
    topology, network = plain_network(topology)
    fabric, end = Fabric(network), 0.0
    for path, nbytes in topology.requests("a", src, dst):
        sent = fabric.inject(path, nbytes, end)
        fabric.run()
        end = sent.done_ns
    return end


def test_a_request_pays_its_hops_and_the_service_and_takes_no_bandwidth():
    assert asked(load_topology(described([ONE_WAY])), (0, 0), (2, 0)) == 2 * 9.0 + 100.0


def test_a_request_that_is_a_packet_takes_links():
    topology = load_topology(described([ONE_WAY]), {"network.requests.nbytes": 64})
    # Two flits: the second is through a link of 1 + 8 ns after 10 ns, and through the other three 9 ns later each.
    assert asked(topology, (0, 0), (2, 0)) == 10 + 3 * 9.0 + 100.0


def test_several_networks_on_chip_share_tiles_and_no_links():
    topology = load_topology(described([ONE_WAY, {"name": "b"}]))
    assert {node.split(".")[0] for node in topology.nodes} == {"a", "b"}
    assert not [edge for edge in topology.edges if edge.src[0] != edge.dst[0]]


def test_kernels_need_a_machine():
    with pytest.raises(TopologyError, match="plain network"):
        _ = load_topology(described([ONE_WAY])).spec


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        (described([]), "without a network on chip"),
        (described([ONE_WAY, ONE_WAY]), "there twice"),
        (described([{"name": "a", "x": "forward"}]), "do not wrap"),
        (described([ONE_WAY], fabric={"buffers": {"slots": 4, "channels": 2}}), "flits own nothing"),
        (described([ONE_WAY], fabric={"buffers": {"slot": 4}}), "unknown key 'slot'"),
        (
            described([ONE_WAY], fabric={"buffers": {"slots": 4, "ownership": "packet", "packet_bytes": 1}}),
            "packets of 1 bytes hold no flit",
        ),
        (described([ONE_WAY], fabric={"buffers": {"slots": 4, "packet_bytes": 512}}), "where flits own nothing"),
    ],
)
def test_what_does_not_fit_together_is_refused(changed, what):
    with pytest.raises(TopologyError, match=what):
        load_topology(changed)
