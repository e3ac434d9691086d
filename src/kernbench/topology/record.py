"""Records: frozen, typed data, read from plain mappings; all problems of a mapping are reported together.

A record's fields are its public annotations, in order; a field with a default may be left out. The annotation defines
how a value is read:
`Annotated[T, Read(f)]`    by `f`, which returns the value or raises `InvalidValue`; where T is a record, then as that
a record                   from a mapping; a key that it does not have is a fault, unless `_further` reads it
`T | None`                 null is allowed
`tuple[T, ...]`, `tuple[A, B]`, `Mapping[str, T]`    from a list or a mapping

Annotations are evaluated when a class is created, so modules of records must not postpone them. Importing a validation
library instead would take a quarter of the time of a small run.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, Union, dataclass_transform, get_args, get_origin

from kernbench.common.frozen import frozen

Loc = tuple[str | int, ...]
ProblemKind = Literal["wrong", "unknown_key", "unknown_part", "missing", "no_mapping", "no_list", "length"]


class InvalidValue(Exception):
    """A value is not valid for its key. For some kinds, `faults.py` writes its own message."""

    def __init__(self, what: str, hint: str, kind: ProblemKind = "wrong") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.kind = kind


class ReadBy(NamedTuple):
    """Marks an annotation with the function that reads its values."""

    read: Callable[[object], object]


@frozen
class Problem:
    """One problem of a mapping, at one location."""

    kind: ProblemKind
    loc: Loc
    value: object = None
    what: str = ""
    hint: str = ""


class RecordError(ValueError):
    """All problems of a mapping."""

    def __init__(self, name: str, problems: list[Problem]) -> None:
        first = problems[0]
        place = ".".join(map(str, first.loc)) or "the whole"
        what = first.what or first.kind.replace("_", " ")
        super().__init__(f"{len(problems)} wrong in {name}, first {place}: {what}")
        self.problems = problems


_FURTHER = "_further_values"  # holds the values of additional keys, read by `_further`
Reader = Callable[[object, Loc, list[Problem]], Any]  # the result is valid only if no problem was added


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Record:
    """Frozen data with `model_validate`, `model_dump` and `model_copy`; equal where all fields are."""

    model_fields: ClassVar[Mapping[str, object]] = {}  # name -> annotation
    _further: ClassVar[object] = None  # annotation of keys besides the fields; without one they are refused
    _readers: ClassVar[dict[str, Reader] | None] = None

    def __init_subclass__(cls) -> None:
        own = {name: note for name, note in get_annotations(cls).items() if not name.startswith("_")}
        postponed = [name for name, annotation in own.items() if isinstance(annotation, str)]
        assert not postponed, f"{cls.__name__} postpones its annotations"
        cls.model_fields = {**cls.model_fields, **own}
        cls._readers = None

    def __init__(self, **values: object) -> None:
        read = type(self).model_validate(values)
        self.__dict__.update(read.__dict__)

    @classmethod
    def model_validate(cls, given: object) -> Self:
        """The record of a mapping; raises RecordError with all problems."""
        problems: list[Problem] = []
        found = cls._read(given, (), problems)
        if problems or found is None:
            raise RecordError(cls.__name__, problems)
        return found

    @classmethod
    def at_key(cls, name: str) -> type[Record] | None:
        """The record type, if any, of the values of a key, or of the entries of its list or mapping."""
        return _record_in(cls.model_fields.get(name, cls._further))

    @classmethod
    def prepared(cls, given: Mapping[Any, object]) -> Mapping[Any, object]:
        """The mapping to read in place of `given`; a subclass may fill in defaults."""
        return given

    @classmethod
    def _read(cls, given: object, loc: Loc, problems: list[Problem]) -> Self | None:
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            problems.append(Problem("no_mapping", loc, given))
            return None
        given = cls.prepared(given)
        readers = cls._readers
        if readers is None:
            readers = cls._readers = {name: _reader(note) for name, note in cls.model_fields.items()}
        record, known = cls.__new__(cls), 0
        values = record.__dict__
        for name, reader in readers.items():
            if name in given:
                known += 1
                values[name] = reader(given[name], (*loc, name), problems)
            elif hasattr(cls, name):
                default = getattr(cls, name)
                values[name] = dict(default) if isinstance(default, Mapping) else default
            else:
                problems.append(Problem("missing", (*loc, name)))
        others = {name: value for name, value in given.items() if name not in readers} if len(given) > known else {}
        if cls._further is not None:
            values[_FURTHER] = _mapping_reader(_reader(cls._further))(others, loc, problems)
        else:
            problems += [Problem("unknown_key", (*loc, name), value) for name, value in others.items()]
        return record

    def further_values(self) -> Mapping[str, Any]:
        """The values read by `_further`, by key."""
        found: Mapping[str, Any] = self.__dict__.get(_FURTHER, {})
        return found

    def model_dump(self, *, mode: Literal["python", "json"] = "python") -> dict[str, Any]:
        """Plain mappings and values, in order of the fields; with `json`, lists instead of tuples."""
        values = {**self.__dict__, **self.further_values()}
        return {name: _dumped(value, mode == "json") for name, value in values.items() if not name.startswith("_")}

    def model_copy(self, *, update: Mapping[str, object]) -> Self:
        """A copy with other values, which are not checked."""
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__ | dict(update))
        return copied

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: '{name}' cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: '{name}' cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"


def _dumped(value: object, as_json: bool) -> object:
    if isinstance(value, Record):
        return value.model_dump(mode="json" if as_json else "python")
    if isinstance(value, Mapping):
        return {key: _dumped(item, as_json) for key, item in value.items()}
    if isinstance(value, tuple):
        items = [_dumped(item, as_json) for item in value]
        return items if as_json else tuple(items)
    return value


# ---- readers of annotations


def _record_in(annotation: Any) -> type[Record] | None:
    if isinstance(annotation, type) and issubclass(annotation, Record):
        return annotation
    found = (_record_in(inner) for inner in get_args(annotation))
    return next((record for record in found if record is not None), None)


def _reader(annotation: Any) -> Reader:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Record):
        return annotation._read
    if origin is Annotated:
        return _marked_reader(arguments[0], arguments[1])
    if origin in (Union, types.UnionType):
        (inner,) = [_reader(each) for each in arguments if each is not type(None)]
        return lambda value, loc, problems: None if value is None else inner(value, loc, problems)
    if origin is tuple:
        return _list_reader(_reader(arguments[0])) if arguments[1:] == (...,) else _row_reader(arguments)
    assert origin is Mapping, f"no reader for {annotation}"
    return _mapping_reader(_reader(arguments[1]))


def _marked_reader(kind: object, mark: ReadBy) -> Reader:
    inner = kind._read if isinstance(kind, type) and issubclass(kind, Record) else None
    read_value = mark.read

    def read(value: object, loc: Loc, problems: list[Problem]) -> object:
        try:
            found = read_value(value)
        except InvalidValue as wrong:
            problems.append(Problem(wrong.kind, loc, value, wrong.what, wrong.hint))
            return None
        return found if inner is None else inner(found, loc, problems)

    return read


def _list_reader(inner: Reader) -> Reader:
    def read(value: object, loc: Loc, problems: list[Problem]) -> object:
        if not isinstance(value, list | tuple):
            problems.append(Problem("no_list", loc, value))
            return None
        return tuple([inner(item, (*loc, at), problems) for at, item in enumerate(value)])

    return read


def _row_reader(kinds: tuple[Any, ...]) -> Reader:
    inners = [_reader(kind) for kind in kinds]

    def read(value: object, loc: Loc, problems: list[Problem]) -> object:
        if not isinstance(value, list | tuple):
            problems.append(Problem("no_list", loc, value))
            return None
        if len(value) > len(inners):
            problems.append(Problem("length", loc, value))
            return None
        pairs = zip(value, inners, strict=False)
        problems += [Problem("missing", (*loc, at)) for at in range(len(value), len(inners))]
        return tuple([inner(item, (*loc, at), problems) for at, (item, inner) in enumerate(pairs)])

    return read


def _mapping_reader(inner: Reader) -> Reader:
    def read(value: object, loc: Loc, problems: list[Problem]) -> object:
        if not isinstance(value, Mapping):
            problems.append(Problem("no_mapping", loc, value))
            return None
        return {name: inner(item, (*loc, str(name)), problems) for name, item in value.items()}

    return read
