"""YAML with source positions: parses text to a tree of marked values, or raises TopologyError.

The tree is built from parser events, not by PyYAML's constructor, so that no file content can cause a traceback:
nesting, size and aliases have limits, duplicate keys and unknown tags are faults. Plain values follow YAML 1.2: `1e9`
is a number, `no` and `off` are text. Every key is text. `<<` merges as usual. Several documents in one file are
refused.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator, Mapping
from typing import Final, NoReturn

import yaml

from kernbench.common.errors import Fault, TopologyError
from kernbench.common.frozen import frozen

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MAX_CHARS: Final = 1 << 20
MAX_DEPTH: Final = 24
MAX_VALUES: Final = 20_000
_MAX_DIGITS: Final = 300  # Python refuses to read very long integers; a machine needs none

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INT = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*|0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: Final[Mapping[str, float | bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    "-.inf": float("-inf"),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_TAG = "tag:yaml.org,2002:"
_TAGGED: Final[Mapping[str, tuple[type, ...]]] = {
    _TAG + "int": (int,),
    _TAG + "float": (int, float),
    _TAG + "bool": (bool,),
    _TAG + "null": (type(None),),
}

YamlScalar = str | int | float | bool | None


@frozen
class SourceMark:
    """A position in a source. `line` and `column` count from 1; line 0 is the source as a whole."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


@frozen
class Marked:
    """A value and its source position; the children of mappings and lists are marked too."""

    value: YamlScalar | dict[str, Marked] | list[Marked]
    mark: SourceMark

    def plain(self) -> object:
        """The value without its marks."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value


def merge(under: Marked, over: Marked) -> Marked:
    """Two trees as one: mappings key by key; of all else `over` takes precedence."""
    if isinstance(under.value, dict) and isinstance(over.value, dict):
        merged = dict(under.value)
        for key, child in over.value.items():
            merged[key] = merge(merged[key], child) if key in merged else child
        return Marked(merged, over.mark)
    return over


def parse_yaml(text: str, source: str) -> Marked:
    """Read one YAML document; raises TopologyError with every fault found."""
    if len(text) > MAX_CHARS:
        _stop(SourceMark(source), "the text is too long", f"keep it under {MAX_CHARS} characters")
    bad = _UNPRINTABLE.search(text)
    if bad:
        line = text.count("\n", 0, bad.start()) + 1
        what = f"the character U+{ord(bad.group()):04X} is not allowed in YAML"
        _stop(SourceMark(source, line), what, "delete it; a machine description is plain UTF-8 text")
    return _TreeBuilder(text, source).document()


def shipped_yaml(package: str, name: str) -> Marked:
    """A YAML file shipped in a package."""
    data = pkgutil.get_data(package, name)
    assert data is not None, f"{name} is not in {package}"
    return parse_yaml(data.decode("utf-8"), f"{package.replace('.', '/')}/{name}")


def plain_scalar(text: str) -> YamlScalar:
    """The value of an unquoted scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _MAX_DIGITS:
        return text
    if _INT.fullmatch(text):
        return int(text, 10 if text[:2] not in ("0x", "0o") else 0)
    return float(text) if _FLOAT.fullmatch(text) else text


def _offset(text: str, mark: SourceMark) -> int:
    """The character offset of a mark."""
    return sum(len(line) for line in text.splitlines(keepends=True)[: mark.line - 1]) + mark.column - 1


def _stop(mark: SourceMark, what: str, hint: str) -> NoReturn:
    raise TopologyError([Fault(what, str(mark), "", hint)])


class _TreeBuilder:
    """Builds the tree from the parser's events. Faults that leave the rest readable are collected."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._events = self._parse(text)
        self._faults: list[Fault] = []
        self._anchors: dict[str, tuple[Marked, int] | None] = {}  # None while the anchored value is still open
        self._values = 0

    def _parse(self, text: str) -> Iterator[yaml.Event]:
        try:
            loader = _Loader(text)
            while loader.check_event():
                yield loader.get_event()
        except (yaml.YAMLError, ValueError) as error:
            mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
            place = SourceMark(self._source, mark.line + 1, mark.column + 1) if mark else SourceMark(self._source)
            problem = getattr(error, "problem", None) or "it cannot be read"
            if "cannot start any token" in problem and text[_offset(text, place) :].startswith("\t"):
                _stop(place, "not valid YAML: a tab stands where only spaces may", "indent with spaces")
            _stop(place, f"not valid YAML: {problem}", "check the indentation, colons, brackets and quotes here")

    def document(self) -> Marked:
        root = Marked({}, SourceMark(self._source))
        seen = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                seen += 1
                if seen > 1:
                    _stop(self._mark(event), "a second document starts here", "keep one document in a file")
                root = self._node(next(self._events), 1)
        if seen == 0:
            _stop(SourceMark(self._source), "there is nothing in it", "write `base: default` for the shipped machine")
        if self._faults:
            raise TopologyError(self._faults)
        return root

    def _mark(self, event: yaml.Event) -> SourceMark:
        start = event.start_mark
        return SourceMark(self._source, start.line + 1, start.column + 1) if start else SourceMark(self._source)

    def _fault(self, mark: SourceMark, what: str, hint: str) -> None:
        self._faults.append(Fault(what, str(mark), "", hint))

    def _count(self, n: int, mark: SourceMark) -> None:
        self._values += n
        if self._values > MAX_VALUES:
            _stop(mark, f"more than {MAX_VALUES} values, aliases written out", "a machine needs a few hundred")

    def _node(self, event: yaml.Event, depth: int) -> Marked:
        mark = self._mark(event)
        if depth > MAX_DEPTH:
            _stop(mark, f"nested more than {MAX_DEPTH} deep", "no key of a machine lies deeper than 10")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, mark)
        before = self._values
        self._count(1, mark)
        anchor: str | None = getattr(event, "anchor", None)
        if anchor is not None:
            self._anchors[anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            node = Marked(self._scalar(event, mark), mark)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = Marked(self._sequence(event, depth), mark)
        elif isinstance(event, yaml.MappingStartEvent):
            node = Marked(self._mapping(event, depth), mark)
        else:
            _stop(mark, "a value is missing here", "write `key: value`")
        if anchor is not None:
            self._anchors[anchor] = (node, self._values - before)
        return node

    def _alias(self, event: yaml.AliasEvent, mark: SourceMark) -> Marked:
        name = event.anchor or ""
        known = self._anchors.get(name)
        if known is None:
            inside = name in self._anchors
            what = f"'*{name}' stands inside its own anchor" if inside else f"there is no anchor '&{name}' before this"
            self._fault(mark, what, "write the value out")
            return Marked(None, mark)
        node, size = known
        self._count(size, mark)
        return node

    def _scalar(self, event: yaml.ScalarEvent, mark: SourceMark) -> YamlScalar:
        tag, text = event.tag, str(event.value)
        if tag in (None, "!", _TAG + "str"):
            return plain_scalar(text) if tag is None and event.implicit[0] else text
        value = plain_scalar(text)
        if tag in _TAGGED and type(value) in _TAGGED[tag]:
            return float(value) if tag == _TAG + "float" and isinstance(value, int) else value
        self._fault(mark, f"the tag '{tag[:60]}' does not fit here", "delete the tag")
        return None

    def _sequence(self, start: yaml.SequenceStartEvent, depth: int) -> list[Marked]:
        self._check_tag(start, "seq")
        items: list[Marked] = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            items.append(self._node(event, depth + 1))
        return items

    def _check_tag(self, start: yaml.CollectionStartEvent, kind: str) -> None:
        if start.tag not in (None, "!", _TAG + kind):
            self._fault(self._mark(start), f"the tag '{start.tag[:60]}' does not fit here", "delete the tag")

    def _mapping(self, start: yaml.MappingStartEvent, depth: int) -> dict[str, Marked]:
        self._check_tag(start, "map")
        children: dict[str, Marked] = {}
        merges: list[Marked] = []
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            mark = self._mark(event)
            key = self._key(event, mark, depth)
            value = self._node(next(self._events), depth + 1)
            if key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
                merges.extend(value.value if isinstance(value.value, list) else [value])
            elif key is not None and key in children:
                first = children[key].mark
                self._fault(mark, f"the key '{key[:60]}' appears twice, first at {first}", "keep one of them")
            elif key is not None:
                children[key] = Marked(value.value, mark)  # faults of a key are reported at the line of the key
        for merge in merges:
            if not isinstance(merge.value, dict):
                self._fault(merge.mark, "'<<' can merge mappings only", "point it at an anchored mapping")
                continue
            for key, child in merge.value.items():
                children.setdefault(key, child)
        return children

    def _key(self, event: yaml.Event, mark: SourceMark, depth: int) -> str | None:
        if isinstance(event, yaml.ScalarEvent):
            if event.anchor is not None:
                self._anchors[event.anchor] = (Marked(str(event.value), mark), 1)
            self._count(1, mark)
            return str(event.value)
        node = self._node(event, depth + 1)
        if isinstance(event, yaml.AliasEvent) and isinstance(node.value, str):
            return node.value
        self._fault(mark, "a key must be a word", "write `key: value`")
        return None
