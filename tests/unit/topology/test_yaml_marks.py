"""YAML with lines: what plain values mean, and that nothing in a file ends in a traceback."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernbench.common.errors import TopologyError
from kernbench.topology import load_topology
from kernbench.topology.yaml_marks import Marked, parse_yaml, plain_scalar


def refused(text: str) -> TopologyError:
    with pytest.raises(TopologyError) as caught:
        parse_yaml(text, "f.yaml")
    return caught.value


def test_every_key_knows_its_line_and_column() -> None:
    tree = parse_yaml("a:\n  b: 1\n  c:\n    - x\n    - { d: 2 }\n", "f.yaml")

    def at(node: Marked, *path: str | int) -> str:
        for part in path:
            assert isinstance(node.value, dict | list)
            node = node.value[part]  # type: ignore[index]  # the test knows which it is
        return f"{node.mark}:{node.mark.column}"

    assert at(tree, "a") == "f.yaml:1:1"
    assert at(tree, "a", "b") == "f.yaml:2:3"
    assert at(tree, "a", "c", 0) == "f.yaml:4:7"
    assert at(tree, "a", "c", 1, "d") == "f.yaml:5:9"
    assert tree.plain() == {"a": {"b": 1, "c": ["x", {"d": 2}]}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e9", 1e9),
        ("-2.5E-3", -2.5e-3),
        (".5", 0.5),
        ("1_000", 1000),
        ("0x10", 16),
        ("010", 10),
        ("no", "no"),
        ("off", "off"),
        ("Yes", "Yes"),
        ("true", True),
        ("~", None),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("1__0", "1__0"),
        ("N", "N"),
        ("9" * 400, "9" * 400),
    ],
)
def test_plain_values_mean_what_they_look_like(text: str, value: object) -> None:
    assert plain_scalar(text) == value
    assert type(plain_scalar(text)) is type(value)


def test_quotes_and_tags_are_honoured() -> None:
    tree = parse_yaml("a: '1'\nb: !!str 2\nc: !!float 3\nd: \"no\"\n", "f")
    assert tree.plain() == {"a": "1", "b": "2", "c": 3.0, "d": "no"}


def test_anchors_and_merges_work() -> None:
    tree = parse_yaml("a: &x { p: 1, q: 2 }\nb: { <<: *x, q: 3 }\nc: *x\n", "f")
    assert tree.plain() == {"a": {"p": 1, "q": 2}, "b": {"p": 1, "q": 3}, "c": {"p": 1, "q": 2}}


def test_duplicate_keys_are_all_reported() -> None:
    error = refused("a: 1\nb: 2\na: 3\nb: 4\n")
    assert [(fault.where, fault.what) for fault in error.faults] == [
        ("f.yaml:3", "the key 'a' appears twice, first at f.yaml:1"),
        ("f.yaml:4", "the key 'b' appears twice, first at f.yaml:2"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1, 2\n", "not valid YAML"),
        ("a:\n\tb: 1\n", "not valid YAML"),
        ("a: 1\n--- \nb: 2\n", "second document"),
        ("a: &x [*x]\n", "inside its own anchor"),
        ("a: *x\n", "no anchor"),
        ("? [1]\n: 2\n", "a key must be a word"),
        ("a: !!python/object:os.system x\n", "tag"),
        ("a: !mine { b: 1 }\n", "tag"),
        ("<<: 3\n", "merge mappings only"),
        ("a: \x07\n", "U+0007"),
        ("[" * 5000, "nested more than"),
        ("- " * 5000, "nested more than"),
        ("", "nothing in it"),
        ("x" * (1 << 21), "too long"),
        ("%YAML 9.9\n---\na: 1\n", "not valid YAML"),
    ],
)
def test_what_cannot_be_read_is_a_fault(text: str, words: str) -> None:
    assert words in refused(text).what


def test_an_alias_bomb_is_refused_before_it_goes_off() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for n in range(1, 9):
        lines.append(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]")
    assert "values" in refused("\n".join(lines)).what


def outcome(source: Path | None, overrides: dict[str, object] | None = None) -> str:
    try:
        load_topology(source, overrides)
    except TopologyError as error:
        return str(error)
    return "a machine"


@settings(max_examples=20, deadline=None)
@given(st.binary(max_size=300))
@example(b"\xff\xfe\x00")
@example(b"\xef\xbb\xbfsystem: {}\n")
@example(b"%TAG ! !\n--- !<!> a")
def test_random_bytes_end_in_a_machine_or_a_topology_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.yaml"
    path.write_bytes(data)
    assert outcome(path)


@pytest.mark.parametrize(("text", "line"), [("a:\n\tb: 1\n", 2), ("a:\r\n\tb: 1\r\n", 2), ("# x\n\n\ta: 1\n", 3)])
def test_a_tab_that_indents_is_called_a_tab(text: str, line: int) -> None:
    error = refused(text)
    assert error.what == "not valid YAML: a tab stands where only spaces may"
    assert (error.where, error.hint) == (f"f.yaml:{line}", "indent with spaces")


@pytest.mark.parametrize("text", ["a: [1,\t\n", "a: @x\n", '\t"', "a:\t@"])
def test_other_mistakes_near_a_tab_or_at_the_end_are_reported_as_they_are(text: str) -> None:
    assert refused(text).what.startswith("not valid YAML: ")


SHIPPED = (Path(load_topology.__code__.co_filename).parent / "default.yaml").read_text(encoding="utf-8")


@settings(max_examples=15, deadline=None)
@given(
    at=st.integers(0, len(SHIPPED) - 1),
    drop=st.integers(0, 12),
    put=st.one_of(
        st.text(alphabet="0123456789.-eE[]{}:,#&*!|>'\"% \n\tNSEWabnull_~", max_size=6),
        st.sampled_from(["1e300", ".nan", "-1", "999999999999", "null", "[]", "{}", "\n", "*x", "&x "]),
    ),
)
def test_a_mutated_machine_ends_in_a_machine_or_a_topology_error(
    tmp_path_factory: pytest.TempPathFactory, at: int, drop: int, put: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "mutated.yaml"
    path.write_text(SHIPPED[:at] + put + SHIPPED[at + drop :], encoding="utf-8")
    assert outcome(path)


@settings(max_examples=15, deadline=None)
@given(st.dictionaries(st.text(max_size=30), st.one_of(st.text(max_size=20), st.integers(), st.floats(), st.none())))
@example({"sip.io_chiplets.-1.side": "N"})
@example({"system.sips.count.0": 1})
@example({"cube.pe_layout.corners.9": "NW"})
def test_random_overrides_end_in_a_machine_or_a_topology_error(overrides: dict[str, object]) -> None:
    assert outcome(None, overrides)
