"""What parts of a PE declare of themselves: attrs that are checked by it, further parts that bring their wires, and
every fault with its line, key and hint.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tests.package import SOURCE

from kernbench.common.engine_declaration import COMPUTE_WIRES, SELF, Attribute, EngineDeclaration, Wire
from kernbench.common.errors import Fault, TopologyError
from kernbench.common.impls import BUILTIN
from kernbench.components.builtin.pe_compute import ComputeEngine
from kernbench.components.builtin.pe_math import PeMathComponent
from kernbench.topology import load_spec, load_topology
from kernbench.topology.attrs import read_attrs
from kernbench.topology.declarations import STANDARD_PARTS, class_declaration, declared_ops
from kernbench.topology.layers import shipped
from kernbench.topology.readers import InvalidValue

PE = "cube.pe_template.components"
SMALL = {"system.sips.count": 1, "sip.cube_mesh": {"w": 1, "h": 1}}


class Sfu(ComputeEngine):
    declaration = EngineDeclaration(
        {"rate": Attribute(1.0, 100.0), "ways": Attribute.whole(1, 8, default=2)},
        ops=("exp", "log"),
        wires=COMPUTE_WIRES,
    )


class Twin(ComputeEngine):
    declaration = EngineDeclaration(ops=("sin", "exp"), wires=COMPUTE_WIRES)


class Derived(Sfu):
    """Declares nothing itself."""


class Unwired(ComputeEngine):
    declaration = EngineDeclaration()


class Undeclared(ComputeEngine):
    pass


class Astray(ComputeEngine):
    declaration = EngineDeclaration(wires=(Wire("pe_scheduler", "pe_tcm", "data"), Wire(SELF, "pe_nothing", "data")))


class Muddled(ComputeEngine):
    declaration = COMPUTE_WIRES  # type: ignore[assignment]  # the point


class Fussy(PeMathComponent):
    declaration = EngineDeclaration({**PeMathComponent.declaration.attrs, "warm_up_ns": Attribute(0.0, 10.0)})


CLASSES = (Sfu, Twin, Derived, Unwired, Undeclared, Astray, Muddled, Fussy)


@pytest.fixture(autouse=True)
def _blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = ModuleType("declared_blocks")
    for cls in CLASSES:
        setattr(module, cls.__name__, cls)
    monkeypatch.setitem(sys.modules, "declared_blocks", module)
    return iter(())


def part(cls: type, **attrs: object) -> dict[str, object]:
    return {"impl": f"declared_blocks:{cls.__name__}", "attrs": attrs}


def faults_of(overrides: dict[str, object]) -> list[Fault]:
    with pytest.raises(TopologyError) as caught:
        load_spec(overrides=overrides)
    return list(caught.value.faults)


class TestTheNine:
    @pytest.mark.parametrize("name", STANDARD_PARTS)
    def test_the_shipped_attrs_are_what_their_declaration_asks_for(self, name: str) -> None:
        """They are not read at every load, so they are read here: under another impl nothing is taken as shipped."""
        part_ = load_spec().cube.pe_template.components.parts[name]
        wrong: list[tuple[str, InvalidValue]] = []
        read = read_attrs(name, BUILTIN[part_.impl], part_.attrs, wrong)
        assert wrong == []
        assert [(key, type(value), value) for key, value in read.items()] == [
            (key, type(value), value) for key, value in part_.attrs.items()
        ]

    @pytest.mark.parametrize(
        ("attr", "value", "what", "hint"),
        [
            ("pe_dma.attrs.outstanding", 0, "0 is out of range", "give a whole number from 1 to 1024"),
            ("pe_dma.attrs.engines_per_direction", True, "expected a whole number", "give a whole number from 1 to 64"),
            ("pe_cpu.attrs.clock_ghz", 0, "0 is out of range", "give a number from 0.001 to 1000"),
            ("pe_gemm.attrs.macs_per_ns", "fast", "expected a number, got 'fast'", "give a number from 0.001 to 1e+09"),
            ("pe_mmu.attrs.page_size", 3000, "3000 is not a power of two", "give a power of two, say 2048 or 4096"),
            ("pe_math.attrs.lane", 3, "unknown attr 'lane' of a pe_math", "known here: overhead_ns, lanes_per_ns"),
            ("pe_fetch_store.attrs.queue_depth", None, "expected a whole number, got nothing", "give a whole number"),
        ],
    )
    def test_attrs_are_checked_by_what_their_class_declares(
        self, attr: str, value: object, what: str, hint: str
    ) -> None:
        (fault,) = faults_of({f"{PE}.{attr}": value})
        assert fault.key == f"{PE}.{attr}"
        assert fault.what.startswith(what)
        assert fault.hint.startswith(hint)

    def test_a_whole_value_in_place_of_a_real_one_becomes_a_real_one(self) -> None:
        graph = load_topology(overrides={**SMALL, f"{PE}.pe_cpu.attrs.overhead_ns": 1})
        assert type(graph.node("sip0.cube0.pe0.pe_cpu").attrs["overhead_ns"]) is float

    def test_a_class_with_its_own_declaration_has_those_attrs_and_no_others(self) -> None:
        key = f"{PE}.pe_math"
        found = faults_of({f"{key}.impl": "declared_blocks:Fussy", f"{key}.attrs.warm_up": 1})
        assert {fault.key for fault in found} == {f"{key}.attrs.warm_up", f"{key}.attrs.warm_up_ns"}
        assert "did you mean 'warm_up_ns'?" in found[0].what + found[1].what
        (fault,) = faults_of({f"{key}.impl": "declared_blocks:Fussy", f"{key}.attrs.warm_up_ns": 11})
        assert fault.hint == "give a number from 0 to 10"

    def test_a_class_without_one_may_have_any_attrs(self) -> None:
        overrides = {**SMALL, f"{PE}.pe_math.impl": "declared_blocks:Undeclared", f"{PE}.pe_math.attrs.mood": "good"}
        assert load_topology(overrides=overrides).node("sip0.cube0.pe0.pe_math").attrs["mood"] == "good"

    def test_a_class_that_is_not_there_is_found_missing_when_it_is_needed(self) -> None:
        """A machine may be described where its classes are not installed."""
        assert load_spec(overrides={f"{PE}.pe_math.impl": "no_such_package:Math"}).n_sips == 2

    def test_a_declaration_of_another_type_is_a_fault(self) -> None:
        (fault,) = faults_of({f"{PE}.pe_math.impl": "declared_blocks:Muddled"})
        assert fault.key == f"{PE}.pe_math.impl"
        assert fault.what == "`declaration` of declared_blocks:Muddled is a tuple"

    def test_builtins_of_the_nine_list_no_ops_since_they_are_not_asked(self) -> None:
        parts = load_spec().cube.pe_template.components
        declared = [class_declaration(part_.impl)[0] for part_ in parts.parts.values()]
        assert [each.ops for each in declared if each is not None] == [()] * 9
        assert declared_ops(parts) == {}

    @pytest.mark.parametrize(
        ("statement", "loaded"),
        [
            ("load_topology()", "False False False"),
            ("load_topology(None, {'system.sips.count': 4, 'cube.pe_layout.pe_per_corner': 1})", "False False False"),
            ("load_topology(None, {'cube.pe_template.components.pe_gemm.attrs.tile_m': 64})", "True True False"),
        ],
    )
    def test_no_class_is_loaded_for_parts_as_they_are_shipped(self, statement: str, loaded: str) -> None:
        names = ["kernbench.components.builtin.pe_gemm", "simpy", "kernbench.components.builtin.pe_cpu"]
        script = (
            f"import sys; from kernbench.topology import load_topology; {statement}\n"
            f"print(*(name in sys.modules for name in {names}))"
        )
        env = {**os.environ, "PYTHONPATH": SOURCE}
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == loaded


class TestFurtherParts:
    def test_every_pe_gets_the_part_with_its_defaults_and_its_wires(self) -> None:
        graph = load_topology(overrides={**SMALL, f"{PE}.pe_sfu": part(Sfu, rate=7)})
        node = graph.node("sip0.cube0.pe7.pe_sfu")
        assert (node.kind, dict(node.attrs)) == ("pe_sfu", {"overhead_ns": 0.0, "ways": 2, "rate": 7.0})
        pe = "sip0.cube0.pe7"
        touching = {(edge.src, edge.dst, edge.bw_gbs) for edge in graph.edges if node.id in (edge.src, edge.dst)}
        assert touching == {
            (f"{pe}.pe_scheduler", f"{pe}.pe_sfu", None),
            (f"{pe}.pe_sfu", f"{pe}.pe_scheduler", None),
            (f"{pe}.pe_sfu", f"{pe}.pe_fetch_store", 512.0),
            (f"{pe}.pe_fetch_store", f"{pe}.pe_sfu", 512.0),
        }

    def test_data_wires_have_the_width_of_the_tcm_port_that_they_lead_to(self) -> None:
        overrides = {**SMALL, f"{PE}.pe_sfu": part(Sfu, rate=7), "cube.pe_template.links.tcm_read_bw_gbs": 128.0}
        graph = load_topology(overrides=overrides)
        pe = "sip0.cube0.pe0"
        assert graph.edge(f"{pe}.pe_sfu", f"{pe}.pe_fetch_store").bw_gbs == 512.0
        assert graph.edge(f"{pe}.pe_fetch_store", f"{pe}.pe_sfu").bw_gbs == 128.0

    def test_a_derived_class_has_what_its_base_declares(self) -> None:
        graph = load_topology(overrides={**SMALL, f"{PE}.pe_sfu": part(Derived, rate=7, mood="good")})
        assert dict(graph.node("sip0.cube0.pe0.pe_sfu").attrs) == {
            "overhead_ns": 0.0, "ways": 2, "rate": 7.0, "mood": "good",
        }  # fmt: skip
        assert declared_ops(graph.spec.cube.pe_template.components) == {"exp": "pe_sfu", "log": "pe_sfu"}

    def test_a_spec_with_further_parts_goes_through_a_dump(self) -> None:
        spec = load_spec(overrides={f"{PE}.pe_sfu": part(Sfu, rate=7)})
        assert load_spec(spec.model_dump()) == spec
        assert load_spec(spec, {f"{PE}.pe_sfu.attrs.ways": 4}).cube.pe_template.components.further["pe_sfu"].attrs == {
            "rate": 7,
            "ways": 4,
        }

    @pytest.mark.parametrize(
        ("entry", "key", "what", "hint"),
        [
            (part(Sfu), "attrs.rate", "a pe_sfu needs the attr 'rate'", "add it"),
            (part(Sfu, rate=101), "attrs.rate", "101 is out of range", "give a number from 1 to 100"),
            (part(Sfu, rate=1, way=3), "attrs.way", "unknown attr 'way' of a pe_sfu (did", "known here: overhead_ns"),
            (part(Sfu, rate=1, overhead_ns=-1), "attrs.overhead_ns", "-1 is out of range", "give a number from 0"),
            (part(Unwired), "impl", "declared_blocks:Unwired declares no wires, so nothing joins pe_sfu", "give its"),
            (part(Muddled), "impl", "`declaration` of declared_blocks:Muddled is a tuple", "make it a kernbench"),
            ({"impl": "declared_blocks:None_"}, "impl", "component impl 'declared_blocks:None_' cannot be", "check"),
            ({"impl": "builtin.forwarding"}, "impl", "builtin.forwarding declares no wires", "give its class"),
            ({"impl": "builtin.pe_sfu"}, "impl", "no builtin 'builtin.pe_sfu' models a pe_sfu", "use one of builtin."),
            ({"impl": "declared_blocks:Twin", "kind": "pe_math"}, "kind", "this place is for a pe_sfu", "write `kind"),
            ({"attrs": {"rate": 1}}, "", "unknown key 'pe_sfu'", "known keys here: pe_cpu, pe_scheduler"),
            (3, "", "expected keys and values, got 3", "give some of the keys kind, impl, attrs"),
            ({"impl": "declared_blocks:Twin", "colour": 1}, "colour", "unknown key 'colour'", "known keys here: kind"),
        ],
    )
    def test_what_is_wrong_with_one_is_said_at_its_key(self, entry: object, key: str, what: str, hint: str) -> None:
        (fault,) = faults_of({f"{PE}.pe_sfu": entry})
        assert fault.key == (f"{PE}.pe_sfu.{key}" if key else f"{PE}.pe_sfu")
        assert fault.what.startswith(what)
        assert fault.hint.startswith(hint)

    def test_a_misspelt_part_is_no_further_part(self) -> None:
        (fault,) = faults_of({f"{PE}.pe_gem.attrs.macs_per_ns": 1})
        assert fault.what == "unknown key 'pe_gem' (did you mean 'pe_gemm'?)"
        assert fault.hint.endswith("; a part of your own needs `impl: package.module:Class`")

    @pytest.mark.parametrize("name", ["sfu", "pe_", "pe_Sfu", "pe-sfu"])
    def test_its_name_must_be_that_of_a_part(self, name: str) -> None:
        (fault,) = faults_of({f"{PE}.{name}": part(Twin)})
        assert (fault.key, fault.what) == (f"{PE}.{name}", f"'{name}' cannot be a part of a PE")

    def test_wires_that_lead_nowhere_are_faults(self) -> None:
        found = faults_of({f"{PE}.pe_sfu": part(Astray)})
        assert [fault.what for fault in found] == [
            "declared_blocks:Astray declares a wire from 'pe_scheduler' to 'pe_tcm'",
            "declared_blocks:Astray declares a wire to 'pe_nothing', which the PE does not have",
        ]

    def test_an_op_has_one_server(self) -> None:
        found = faults_of({f"{PE}.pe_sfu": part(Sfu, rate=1), f"{PE}.pe_twin": part(Twin)})
        assert [(fault.key, fault.what) for fault in found] == [
            (f"{PE}.pe_twin.impl", "pe_twin and pe_sfu both serve the op 'exp'")
        ]

    def test_faults_of_parts_come_together_with_their_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "m.yaml"
        path.write_text(
            "cube:\n"
            "  pe_template:\n"
            "    components:\n"
            "      pe_dma: { attrs: { outstanding: 0 } }\n"  # 4
            "      pe_sfu:\n"
            "        impl: declared_blocks:Sfu\n"  # 6
            "        attrs: { rate: 0 }\n"  # 7
            "      pe_twin: { impl: declared_blocks:Twin }\n"  # 8
        )
        with pytest.raises(TopologyError) as caught:
            load_topology(path)
        assert [(fault.key, fault.where.rsplit(":", 1)[1]) for fault in caught.value.faults] == [
            (f"{PE}.pe_dma.attrs.outstanding", "4"),
            (f"{PE}.pe_sfu.attrs.rate", "7"),
            (f"{PE}.pe_twin.impl", "8"),
        ]


def test_the_shipped_machine_has_the_nine_and_no_more() -> None:
    tree = shipped().plain()
    assert isinstance(tree, dict)
    assert list(tree["cube"]["pe_template"]["components"]) == list(STANDARD_PARTS)
