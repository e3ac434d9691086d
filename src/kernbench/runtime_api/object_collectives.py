"""Collectives of Python objects: pickled, written to the device as bytes, sent, read back and unpickled.

Bytes travel and take time as tensors do: a first exchange for sizes, a second one for contents. Objects of other ranks
are copies, as in PyTorch.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernbench.common.errors import DistributedError, DistributedTypeError
from kernbench.runtime_api.groups import GroupArg
from kernbench.runtime_api.list_collectives import ListCollectives
from kernbench.runtime_api.tensor import Tensor


class ObjectCollectives(ListCollectives):
    """The part of `torch.distributed` that moves objects."""

    def all_gather_object(self, object_list: list[Any], obj: Any, group: GroupArg = None) -> None:
        """On every rank, entry i of the list becomes the object of rank i."""
        member = self._member(group)
        size = member.group.size()
        _check_list("object_list", object_list, size)
        data = _pickled(obj)
        sizes = self._sizes([], size)
        self.all_gather_into_tensor(sizes, self._sizes([len(data)]), group)
        lengths = sizes.cpu().tolist()
        most = max(lengths)
        everyone = self._bytes(size * most)
        self.all_gather_into_tensor(everyone, self._written(data, most), group)
        _fill(object_list, everyone.cpu().reshape(size, most), lengths)

    def gather_object(
        self,
        obj: Any,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group: GroupArg = None,
        group_dst: int | None = None,
    ) -> None:
        """On rank `dst`, which gives a list, entry i of it becomes the object of rank i."""
        member = self._member(group)
        root = member.root(dst, group_dst, "dst", default=0)
        size, is_root = member.group.size(), root == member.rank
        _check_root_list("object_gather_list", object_gather_list, is_root, "destination", size)
        data = _pickled(obj)
        sizes = self._sizes([], size)
        self.all_gather_into_tensor(sizes, self._sizes([len(data)]), group)
        lengths = sizes.cpu().tolist()
        most = max(lengths)
        outputs = [self._bytes(most) for _ in range(size)] if is_root else None
        self.gather(self._written(data, most), outputs, group=group, group_dst=root)
        if outputs is not None and object_gather_list is not None:
            _fill(object_gather_list, [each.cpu() for each in outputs], lengths)

    def broadcast_object_list(
        self,
        object_list: list[Any],
        src: int | None = None,
        group: GroupArg = None,
        device: object = None,
        group_src: int | None = None,
    ) -> None:
        """Every rank's list becomes that of rank `src`. `device` is accepted for compatibility."""
        member = self._member(group)
        root = member.root(src, group_src, "src", default=0)
        _check_list("object_list", object_list, None)
        data = [_pickled(each) for each in object_list] if root == member.rank else []
        sizes = self._sizes([len(each) for each in data], len(object_list) if not data else None)
        self.broadcast(sizes, group=group, group_src=root)
        lengths = sizes.cpu().tolist()
        total = sum(lengths)
        joined = self._written(b"".join(data), total) if data else self._bytes(total)
        self.broadcast(joined, group=group, group_src=root)
        if root != member.rank:
            _split(object_list, joined, lengths)

    def scatter_object_list(
        self,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group: GroupArg = None,
        group_src: int | None = None,
    ) -> None:
        """Entry 0 of every rank's output list becomes the rank's entry of the list that rank `src` gives."""
        member = self._member(group)
        root = member.root(src, group_src, "src", default=0)
        size, is_root = member.group.size(), root == member.rank
        if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
            raise DistributedError(
                "Expected argument scatter_object_output_list to be a list of size at least 1.", hint="give [None]"
            )
        data = []
        if is_root:
            _check_root_list("scatter_object_input_list", scatter_object_input_list, True, "source", size)
            data = [_pickled(each) for each in scatter_object_input_list or ()]
        sizes = self._sizes([len(each) for each in data], None if data else size)
        self.broadcast(sizes, group=group, group_src=root)
        lengths = sizes.cpu().tolist()
        most = max(lengths)
        into = self._bytes(most)
        self.scatter(into, [self._written(each, most) for each in data] or None, group=group, group_src=root)
        _fill(scatter_object_output_list, [into.cpu()], [lengths[member.rank]])

    def send_object_list(
        self,
        object_list: list[Any],
        dst: int | None = None,
        group: GroupArg = None,
        device: object = None,
        group_dst: int | None = None,
    ) -> None:
        """Send the objects of a list to a rank, which receives as many."""
        _check_list("object_list", object_list, None)
        peer = self._member(group).root(dst, group_dst, "dst")
        data = [_pickled(each) for each in object_list]
        self.send(self._sizes([len(each) for each in data]), group=group, group_dst=peer)
        self.send(self._written(b"".join(data), sum(map(len, data))), group=group, group_dst=peer)

    def recv_object_list(
        self,
        object_list: list[Any],
        src: int | None = None,
        group: GroupArg = None,
        device: object = None,
        group_src: int | None = None,
    ) -> int:
        """Receive objects into a list; returns the sender, a global rank."""
        _check_list("object_list", object_list, None)
        sizes = self._sizes([], len(object_list))
        sender = self.recv(sizes, src, group, group_src=group_src)
        lengths = sizes.cpu().tolist()
        joined = self._bytes(sum(lengths))
        self.recv(joined, sender, group)
        _split(object_list, joined, lengths)
        return sender

    # ---- inside

    def _sizes(self, lengths: Sequence[int], count: int | None = None) -> Tensor:
        """Lengths on the caller's device; with `count`, room for that many."""
        if count is not None:
            return self._host.empty(count, dtype="i64", name="object sizes")
        return self._host.from_numpy(np.array(lengths, np.int64), name="object sizes")

    def _bytes(self, count: int) -> Tensor:
        return self._host.empty(count, dtype="u8", name="objects")

    def _written(self, data: bytes, count: int) -> Tensor:
        padded = np.zeros(count, np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        return self._host.from_numpy(padded, name="objects")


def _pickled(obj: Any) -> bytes:
    try:
        return pickle.dumps(obj)
    except Exception as error:
        raise DistributedTypeError(
            f"an object of type {type(obj).__name__} cannot be pickled: {error}",
            hint="give what pickle takes: numbers, text, lists, dicts, functions of a module",
        ) from None


def _fill(into: list[Any], rows: Any, lengths: Sequence[int]) -> None:
    for at, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        into[at] = pickle.loads(np.asarray(row)[:length].tobytes())


def _split(into: list[Any], joined: Tensor, lengths: Sequence[int]) -> None:
    """Objects that lie one after the other."""
    data, at = joined.cpu().tobytes(), 0
    for number, length in enumerate(lengths):
        into[number] = pickle.loads(data[at : at + length])
        at += length


def _check_list(name: str, given: object, size: int | None) -> None:
    if not isinstance(given, list) or not given or (size is not None and len(given) != size):
        wants = "one entry or more" if size is None else f"{size} entries, one for each rank"
        raise DistributedTypeError(f"{name} is {given!r}", hint=f"give a list of {wants}")


def _check_root_list(name: str, given: object, is_root: bool, kind: str, size: int) -> None:
    if is_root and (not isinstance(given, list) or len(given) != size):
        raise DistributedError(
            f"Argument ``{name}`` must be specified on {kind} rank.", hint=f"give a list of {size}, one for each rank"
        )
    if not is_root and given:
        raise DistributedError(
            f"Argument ``{name}`` must NOT be specified on non-{kind} ranks.", hint="give None there"
        )
