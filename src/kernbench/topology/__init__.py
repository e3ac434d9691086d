"""Machine descriptions: YAML in, a checked spec, a frozen graph out."""

from kernbench.topology.compile import compile_spec, load_topology
from kernbench.topology.graph import Edge, EdgeKind, Node, TopologyGraph
from kernbench.topology.load import load_spec
from kernbench.topology.mesh import Mesh, build_mesh, mesh_as_yaml
from kernbench.topology.spec import MachineSpec

__all__ = [
    "Edge",
    "EdgeKind",
    "MachineSpec",
    "Mesh",
    "Node",
    "TopologyGraph",
    "build_mesh",
    "compile_spec",
    "load_spec",
    "load_topology",
    "mesh_as_yaml",
]
