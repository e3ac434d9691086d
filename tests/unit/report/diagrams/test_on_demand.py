"""Diagrams are made on demand; loading a machine makes none."""

import subprocess
import sys

from kernbench.report.diagrams import diagram_texts, machine_views
from kernbench.topology import load_topology


def test_loading_a_machine_imports_no_drawing_code_and_builds_no_view() -> None:
    program = (
        "import sys; from kernbench.topology import load_topology; graph = load_topology();"
        "print(hasattr(graph, 'views'), [name for name in sys.modules if 'svg' in name or 'view' in name.split('.')[-1]"
        " and name.startswith('kernbench')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False []"


def test_a_machine_has_four_views_and_a_file_for_each_beside_its_mesh() -> None:
    graph = load_topology(overrides={"system.sips.count": 1, "sip.cube_mesh": {"w": 1, "h": 1}})
    assert list(machine_views(graph.spec)) == ["system", "sip", "cube", "pe"]
    assert list(diagram_texts(graph)) == [
        "system_view.svg",
        "sip_view.svg",
        "cube_view.svg",
        "pe_view.svg",
        "cube_mesh.yaml",
    ]


def test_the_tray_says_that_the_topology_of_its_sips_is_logical() -> None:
    spec = load_topology(overrides={"system.sips": {"count": 4, "topology": "torus_2d"}, "sip.cube_mesh.w": 1}).spec
    switch = next(node for node in machine_views(spec)["system"].nodes if node.kind == "switch")
    assert switch.detail == "4 SIPs, logical torus_2d"
