"""Messages check their own fields when they are made (what needs the machine is checked at submission)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.errors import MessageError
from kernbench.common.messages import Completion, CubeDmaMsg, MemoryReadMsg, MemoryWriteMsg, Pattern, PeDmaMsg

WRITE = {"dst_sip": 0, "dst_cube": 0, "dst_pe": 0, "dst_pa": 0, "nbytes": 64}
READ = {"src_sip": 0, "src_cube": 0, "src_pe": 0, "src_pa": 0, "nbytes": 64}
DMA = {"src_sip": 0, "src_cube": 0, "src_pe": 0, "dst_pa": 0, "nbytes": 64}
CUBE_DMA = {"sip": 0, "offset": 0, "nbytes": 64}
SCHEMAS: list[tuple[Any, dict[str, int]]] = [
    (MemoryWriteMsg, WRITE),
    (MemoryReadMsg, READ),
    (PeDmaMsg, DMA),
    (CubeDmaMsg, CUBE_DMA),
]
EVERY_FIELD = [(cls, fields, name) for cls, fields in SCHEMAS for name in fields]


@pytest.mark.parametrize(("cls", "fields"), SCHEMAS)
def test_required_fields_are_enough(cls: Any, fields: dict[str, int]) -> None:
    assert cls(**fields).nbytes == 64


@pytest.mark.parametrize(("cls", "fields", "name"), EVERY_FIELD)
def test_every_tag_address_and_size_is_required(cls: Any, fields: dict[str, int], name: str) -> None:
    with pytest.raises(TypeError, match=name):
        cls(**{key: value for key, value in fields.items() if key != name})


@pytest.mark.parametrize("value", [None, -1, 1.5, "0", True])
@pytest.mark.parametrize(("cls", "fields", "name"), EVERY_FIELD)
def test_field_that_is_no_count_is_refused_by_name(cls: Any, fields: dict[str, int], name: str, value: object) -> None:
    with pytest.raises(MessageError, match=rf"{cls.__name__}\.{name} is "):
        cls(**{**fields, name: value})


@pytest.mark.parametrize(("cls", "fields"), SCHEMAS)
def test_no_bytes_are_no_request(cls: Any, fields: dict[str, int]) -> None:
    with pytest.raises(MessageError, match="nbytes is 0"):
        cls(**{**fields, "nbytes": 0})


@pytest.mark.parametrize(
    ("cls", "fields", "says"),
    [
        (MemoryWriteMsg, {**WRITE, "src_kind": "file"}, "unknown src_kind 'file'"),
        (MemoryWriteMsg, {**WRITE, "pattern": None}, "has no pattern"),
        (MemoryWriteMsg, {**WRITE, "dst_mem_kind": "DISK"}, "unknown dst_mem_kind 'DISK'"),
        (MemoryReadMsg, {**READ, "dst_kind": "printer"}, "unknown dst_kind 'printer'"),
        (PeDmaMsg, {**DMA, "is_write": 1}, "is_write is 1"),
        (PeDmaMsg, {**DMA, "pattern": None}, "PeDmaMsg.pattern is None"),
        (CubeDmaMsg, {**CUBE_DMA, "is_write": None}, "is_write is None"),
        (CubeDmaMsg, {**CUBE_DMA, "pattern": "zero"}, "CubeDmaMsg.pattern is 'zero'"),
        (CubeDmaMsg, {**CUBE_DMA, "target_cubes": ()}, r"target_cubes is \(\)"),
        (CubeDmaMsg, {**CUBE_DMA, "target_pes": [0]}, r"target_pes is \[0\]"),
        (CubeDmaMsg, {**CUBE_DMA, "target_pes": (0, -1)}, "target_pes is -1"),
        (CubeDmaMsg, {**CUBE_DMA, "target_pes": (1, 1)}, r"target_pes is \(1, 1\)"),
        (CubeDmaMsg, {**CUBE_DMA, "target_cubes": "some"}, "target_cubes is 'some'"),
    ],
)
def test_choice_that_does_not_exist_is_refused(cls: Any, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(MessageError, match=says) as caught:
        cls(**fields)
    assert caught.value.hint


def test_host_buffer_needs_no_pattern() -> None:
    assert MemoryWriteMsg(**WRITE, src_kind="host_buffer_ref", pattern=None).pattern is None  # type: ignore[arg-type]  # ints only


def test_type_name_is_the_records() -> None:
    messages = [cls(**fields) for cls, fields in SCHEMAS]
    assert [message.msg_type for message in messages] == ["MemoryWrite", "MemoryRead", "PeDma", "CubeDma"]


def test_pe_dma_takes_its_fields_in_order() -> None:
    named = PeDmaMsg(src_sip=1, src_cube=2, src_pe=3, dst_pa=4, nbytes=64, is_write=True)
    assert PeDmaMsg(1, 2, 3, 4, 64, True) == named
    assert (named.src_sip, named.src_cube, named.src_pe, named.dst_pa, named.nbytes) == (1, 2, 3, 4, 64)


def test_message_cannot_be_changed() -> None:
    message = PeDmaMsg(src_sip=0, src_cube=0, src_pe=0, dst_pa=0, nbytes=64)
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.nbytes = 1  # type: ignore[misc]  # the point of the test


# ---- patterns


@pytest.mark.parametrize(("kind", "bits"), [("fill_u8", 8), ("fill_u16", 16), ("fill_u32", 32)])
def test_unsigned_patterns_hold_exactly_their_range(kind: Any, bits: int) -> None:
    assert Pattern(kind, (1 << bits) - 1).value == (1 << bits) - 1
    for value in (-1, 1 << bits, 0.5):
        with pytest.raises(MessageError, match="cannot hold"):
            Pattern(kind, value)


@pytest.mark.parametrize("kind", ["fill_u8", "fill_fp16", "fill_fp32"])
@pytest.mark.parametrize("value", [None, "1", True])
def test_fill_needs_a_number(kind: Any, value: Any) -> None:
    with pytest.raises(MessageError, match="has no value"):
        Pattern(kind, value)


def test_unknown_pattern_is_refused() -> None:
    with pytest.raises(MessageError, match="unknown pattern 'noise'"):
        Pattern("noise")  # type: ignore[arg-type]  # the point of the test


# ---- completions


@given(st.booleans(), st.none() | st.text(), st.none() | st.text())
def test_completion_is_ok_without_error_or_failed_with_a_code(ok: bool, code: str | None, text: str | None) -> None:
    good = (code is None and text is None) if ok else code is not None
    if good:
        assert Completion(ok, code, text).ok is ok
    else:
        with pytest.raises(MessageError):
            Completion(ok, code, text)
