"""Launch and mapping messages: what is refused when they are made, and what they derive."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernbench.common.errors import MessageError
from kernbench.common.messages import (
    ConstArg,
    CubeDmaMsg,
    KernelLaunchMsg,
    KernelRef,
    MapEntry,
    MmuMapMsg,
    MmuUnmapMsg,
    ScalarArg,
    TensorArg,
    TensorShard,
    UnmapEntry,
)

REF = KernelRef("k")
SHARDS = (TensorShard(0, 0, 0, 0x100, 8, 0), TensorShard(0, 0, 1, 0x900, 8, 8))
ARG = TensorArg("a", (4, 2), "f16", 0x1000, SHARDS, {(0, 0, 0): (2, 2), (0, 0, 1): (2, 2)}, (0,))


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: KernelRef(""), "KernelRef.name is ''"),
        (lambda: TensorShard(0, 0, 0, 0, 0, 0), "TensorShard.nbytes is 0"),
        (lambda: TensorShard(0, -1, 0, 0, 1, 0), "TensorShard.cube is -1"),
        (lambda: TensorShard(0, 0, 0, 0, 1, True), "TensorShard.offset_bytes is True"),
        (lambda: TensorArg("a", (4,), "f16", None, ()), "TensorArg 'a' has no shards"),
        (lambda: TensorArg("a", (-4,), "f16", None, SHARDS), r"TensorArg 'a' has shape \(-4,\)"),
        (lambda: ScalarArg("i8", 3), "ScalarArg.dtype is 'i8'"),
        (lambda: ScalarArg("i32", "3"), "ScalarArg.value is '3'"),
        (lambda: ConstArg([3]), r"ConstArg.value is \[3\]"),
        (lambda: ConstArg(("a", {})), r"ConstArg.value is \('a', {}\)"),
        (lambda: KernelLaunchMsg(sip=-1, kernel_ref=REF), "KernelLaunchMsg.sip is -1"),
        (lambda: KernelLaunchMsg(sip=0, kernel_ref="k"), "KernelLaunchMsg.kernel_ref is 'k'"),
        (lambda: KernelLaunchMsg(sip=0, kernel_ref=REF, args=[]), "KernelLaunchMsg.args is"),
        (lambda: KernelLaunchMsg(sip=0, kernel_ref=REF, args=(3,)), "KernelLaunchMsg.args holds 3"),
        (lambda: KernelLaunchMsg(sip=0, kernel_ref=REF, named_args={"n": 3}), "KernelLaunchMsg.args holds 3"),
        (lambda: KernelLaunchMsg(sip=0, kernel_ref=REF, failure_policy="x"), "failure_policy is 'x'"),
        (lambda: KernelLaunchMsg(sip=0, kernel_ref=REF, stream="x"), "stream is 'x'"),
        (lambda: KernelLaunchMsg(sip=0, kernel_ref=REF, target_start_ns=-1.0), "target_start_ns is -1.0"),
        (lambda: KernelLaunchMsg(sip=0, kernel_ref=REF, target_cubes=()), r"target_cubes is \(\)"),
        (lambda: KernelLaunchMsg(sip=0, kernel_ref=REF, target_pes=(1, 1)), r"target_pes is \(1, 1\)"),
        (lambda: MapEntry(0, 0, 0), "MapEntry.nbytes is 0"),
        (lambda: UnmapEntry(-1, 1), "UnmapEntry.va is -1"),
        (lambda: MmuMapMsg(sip=0, entries=()), "MmuMapMsg has no entries"),
        (lambda: MmuUnmapMsg(sip=0, entries=()), "MmuUnmapMsg has no entries"),
        (lambda: CubeDmaMsg(sip=0, offset=0, nbytes=1, target_pes="some"), "CubeDmaMsg.target_pes is 'some'"),
    ],
)
def test_a_wrong_field_is_refused(make: Callable[[], object], what: str) -> None:
    with pytest.raises(MessageError, match=what):
        make()


def test_a_tensor_argument_is_one_pointer_with_virtual_addresses() -> None:
    assert [ARG.address_for((0, 0, pe)) for pe in range(3)] == [0x1000] * 3
    assert ARG.span_bytes == 16


def test_a_tensor_argument_is_where_the_own_part_lies_with_physical_addresses() -> None:
    physical = TensorArg("a", (4, 2), "f16", None, SHARDS, ARG.local_shapes)
    assert [physical.address_for((0, 0, pe)) for pe in range(3)] == [0x100, 0x900, 0x100]


def test_a_pe_that_holds_no_part_has_nothing_of_a_split_tensor() -> None:
    assert ARG.local_shape_for((0, 0, 1)) == (2, 2)
    assert ARG.local_shape_for((0, 3, 1)) == (0, 2)


def test_a_tensor_that_is_not_split_is_everybodys() -> None:
    whole = TensorArg("a", (4, 2), "f16", 0x1000, SHARDS[:1], {(0, 0, 0): (4, 2)})
    assert whole.local_shape_for((0, 3, 1)) == (4, 2)


def test_targets_are_all_or_those_named() -> None:
    launch = KernelLaunchMsg(sip=0, kernel_ref=REF, target_pes=(3, 1))
    assert list(launch.cubes(3)) == [0, 1, 2]
    assert list(launch.pes(8)) == [3, 1]
    assert launch.msg_type == "KernelLaunch"


@pytest.mark.parametrize("gone", ["grid", "meta", "timestamp_tag"])
def test_a_launch_has_no_field_that_nothing_reads(gone: str) -> None:
    with pytest.raises(TypeError, match=gone):
        KernelLaunchMsg(sip=0, kernel_ref=REF, **{gone: None})  # type: ignore[arg-type]  # the mistake: no such field


def test_entries_that_touch_and_are_for_all_make_a_run() -> None:
    touching = (MapEntry(0, 100, 8), MapEntry(8, 300, 4))
    assert MmuMapMsg(sip=0, entries=touching).is_run
    assert not MmuMapMsg(sip=0, entries=touching[::-1]).is_run
    assert not MmuMapMsg(sip=0, entries=(touching[0], MapEntry(8, 300, 4, pe=2))).is_run


def test_an_entry_is_for_everyone_it_does_not_exclude() -> None:
    assert MapEntry(0, 0, 1).is_for(3, 4)
    assert MapEntry(0, 0, 1, cube=3).is_for(3, 4)
    assert not MapEntry(0, 0, 1, cube=3, pe=5).is_for(3, 4)
