"""Op-log records of messages: of a send when it is over, of a receive when the whole message is here."""

from __future__ import annotations

from kernbench.common.ipcq import Message
from kernbench.components.builtin.ipcq_rings import RecvOp, RxRing, SendOp, TxRing
from kernbench.components.recording import NO_REF, FieldValue, Recorder, Release, op_ref

OP_KIND = "communication"


def record_send(log: Recorder, node: str, now: float, op: SendOp) -> int:
    """The record of a send that ends now."""
    assert op.start_ns is not None
    message = op.cmd.message
    params = _params(message, op.ring)
    params |= {"src_addr": op.cmd.source.address, "handle_id": op.cmd.handle_id}
    if log.lines:
        params["line"] = message.line
    causes = (0, op.cause[0], op.issued_ns, op.cause[1], *op.waited)
    stream = op.user.launch.stream
    deps = op.cmd.deps
    return log.record(op.start_ns, now, node, OP_KIND, "ipcq_send", params, deps, causes=causes, stream=stream)


def record_receive(log: Recorder, node: str, now: float, ring: RxRing, op: RecvOp) -> int:
    """The record of a receive that ends now."""
    assert op.start_ns is not None
    message = op.message
    assert message is not None
    params = _params(message, ring)
    params["handle_id"] = op.cmd.handle_id
    if log.lines:
        params["line"] = op.cmd.line
    sent = () if message.record is None else (message.record,)
    causes = (0, op.cause[0], op.issued_ns, op.cause[1], *_released(ring, op, message))
    stream = op.user.launch.stream
    return log.record(op.start_ns, now, node, OP_KIND, "ipcq_recv", params, sent, causes=causes, stream=stream)


def _released(ring: RxRing, op: RecvOp, message: Message) -> tuple[float, ...]:
    """What let a receive start, if it had to wait: its message, or the receive before it in the same ring."""
    if op.waited:
        return (0, Release.MESSAGE, op.waited[0], NO_REF if message.record is None else op_ref(message.record))
    if op.start_ns != op.posted_ns and ring.last_record is not None:
        return (0, Release.LANE, op.posted_ns, op_ref(ring.last_record))
    return ()


def _params(message: Message, ring: TxRing | RxRing) -> dict[str, FieldValue]:
    """Parameters that the records at both ends of a message share."""
    return {
        "direction": ring.direction,
        "peer": ring.peer_name,
        "nbytes": message.nbytes,
        "shape": message.shape,
        "dtype": message.dtype,
        "chunks": message.chunks,
        "communicator": ring.communicator.name,
    }
