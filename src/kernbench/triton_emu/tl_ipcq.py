"""`tl`: messages to and from neighbouring PEs, through the rings of a communicator."""

from __future__ import annotations

from functools import cached_property
from math import prod

from kernbench.common.commands import EngineCommand, RecvCmd, SendCmd
from kernbench.common.errors import KernBenchError, KernelError
from kernbench.common.ids import PeKey
from kernbench.common.ipcq import Communicator, LaunchOrigin, Message
from kernbench.triton_emu.call_site import at_kernel_line, kernel_line
from kernbench.triton_emu.handle import TcmAddress, TensorHandle
from kernbench.triton_emu.kernel_runner import Records, RecordsCallback
from kernbench.triton_emu.pending_handle import TransferHandle
from kernbench.triton_emu.tl_access import TlAccess
from kernbench.values.graph import Value

ANY = "any direction"


class TlIpcq(TlAccess):
    """Sending and receiving."""

    # ---- neighbours

    def directions(self) -> tuple[str, ...]:
        """The directions in which this PE has a neighbour. Engine: none."""
        return self._communicator("directions").directions_of(self._env.place)

    def peer(self, dir: str) -> PeKey | None:
        """(SIP, cube, PE) of the neighbour in a direction, None where there is none. Engine: none."""
        found = self._communicator("peer").peer_of(self._env.place, self._direction("peer", dir))
        return None if found is None else found.pe

    # ---- sending

    def send(
        self,
        dir: str,
        src: TensorHandle | None = None,
        *,
        src_addr: int | None = None,
        nbytes: int | None = None,
        shape: object = None,
        dtype: object = "f16",
        space: str = "tcm",
    ) -> None:
        """Send a tensor in TCM to the neighbour in a direction, and wait until its last byte has left the PE, or, to
        another SIP, the sender's SIP.

        Shape and dtype: any; the receive must name the same. Engine: IPCQ, and DMA (communication channel). A message
        larger than a slot is cut. Waits while the ring at the other end is full. Instead of `src`, an address may be
        given: that of a tensor in TCM (`x.addr`), or one in `space`, of so many `nbytes` or of a shape and dtype, which
        is loaded first (DMA, read channel).
        """
        if src_addr is not None:
            if src is not None:
                self._fail("send: src and src_addr", "give one of them")
            src = self._tensor_to_send(src_addr, nbytes, shape, dtype, space)
        self._call(self._sending("send", dir, src))

    def _tensor_to_send(self, at: int, nbytes: int | None, shape: object, dtype: object, space: str) -> TensorHandle:
        """The tensor at an address."""
        if isinstance(at, TcmAddress):
            x = at.tensor
            if space != "tcm" or nbytes not in (None, x.nbytes) or (shape is not None and x.shape != shape):
                what = f"{x.dtype}{list(x.shape)}, {x.nbytes} bytes in tcm"
                self._fail(f"send: src_addr is the address of {what}", 'send it whole, or a part: tl.send("E", x[:64])')
            return x
        element = self._dtype(dtype)
        if shape is None and (nbytes is None or nbytes % element.itemsize):
            self._fail(f"send: {nbytes} bytes of {element.name} at src_addr", "give nbytes of whole elements, or shape")
        dims = (nbytes // element.itemsize,) if shape is None and nbytes is not None else self._shape("send", shape)
        if nbytes not in (None, prod(dims) * element.itemsize):
            self._fail(f"send: {nbytes} bytes, and a shape of {list(dims)} {element.name}", "give one of them")
        self._check_space("send", "src_addr", at, "space", space)
        return self.load(at, dims, element.name)

    def _check_space(self, op: str, name: str, at: int, key: str, space: str) -> None:
        """An address must be in the memory that the call says."""
        found = self._tensor_at(op, at, is_empty=False).space
        if space != found:
            self._fail(f"{op}: {name} is in {found}, not in {space}", f'say {key}="{found}"')

    def send_async(self, dir: str, src: TensorHandle) -> TransferHandle:
        """As `send`, without waiting for it: `tl.wait` does. What is sent is what `src` holds now."""
        cmd = self._sending("send_async", dir, src)
        handle = TransferHandle(self, (src,))
        self._has_pending = True
        handle.command.number = self._issue_message(cmd, handle.command.finish)
        return handle

    def _sending(self, op: str, dir: str, src: TensorHandle | None) -> SendCmd:
        tensor = self._local(op, src, "src")
        self._communicator(op)
        direction = self._direction(op, dir)
        message = Message(
            self._known(tensor),
            tensor.shape,
            tensor.dtype,
            self._known(tensor).nbytes,
            kernel_line(),
            self._env.place,
            direction,
            self._origin,
        )
        return SendCmd(direction, tensor.operand(), message, self._next_name(), tensor.records)

    # ---- receiving

    def recv(
        self,
        dir: str | None = None,
        shape: object = None,
        dtype: object = "f16",
        dst: int | str | None = None,
        *,
        space: str = "tcm",
        dst_addr: int | None = None,
        dst_space: str | None = None,
    ) -> TensorHandle:
        """Wait for the next message from a direction, or from any direction if that is None, and consume it.

        Shape and dtype: those that were sent; anything else is an error that names both lines. Returns a tensor in
        TCM; with `dst`, a pointer, the message is stored there instead and a reference to it is returned. Engine: IPCQ,
        which reads the slots and returns credits; with `dst` also DMA (write channel). `dst_addr`, in `dst_space`, is
        another name of `dst`. `space` is where a received tensor lies: in TCM.
        """
        if isinstance(dst, str):  # the fourth parameter is `space` in another form of this call
            return self.recv(dir, shape, dtype, space=dst, dst_addr=dst_addr, dst_space=dst_space)
        if space != "tcm":
            self._fail(f"recv: into {space}", "a message is received into TCM; give dst= to store it elsewhere")
        dst = self._target_of_recv(dst, dst_addr, dst_space)
        received = self._receive("recv", dir, shape, dtype)
        if dst is None:
            return received
        self.store(dst, received)
        return self.ref(dst, received.shape, received.dtype)

    def _target_of_recv(self, dst: int | None, dst_addr: int | None, dst_space: str | None) -> int | None:
        """Where to store what is received; None for nowhere."""
        if dst_addr is None:
            if dst_space is not None:
                self._fail("recv: dst_space without dst_addr", "give both, or neither")
            return dst
        if dst is not None:
            self._fail("recv: dst and dst_addr", "give one of them")
        if isinstance(dst_addr, TcmAddress):
            self._fail(
                "recv: dst_addr is a tensor in this PE's TCM, and tensors there never change",
                'leave dst_addr out: x = tl.recv("W", (64,)) is a tensor in TCM',
            )
        if dst_space is not None:
            self._check_space("recv", "dst_addr", dst_addr, "dst_space", dst_space)
        return dst_addr

    def recv_no_consume(self, dir: str | None = None, shape: object = None, dtype: object = "f16") -> TensorHandle:
        """For diagnosis: as `recv`, without the time to read the slots. The message is consumed all the same."""
        return self._receive("recv_no_consume", dir, shape, dtype, reads_slots=False)

    def recv_async(self, dir: str | None = None, shape: object = None, dtype: object = "f16") -> TransferHandle:
        """As `recv`, without waiting for it: `tl.wait` does, and returns the tensor. Its place in TCM is taken now."""
        cmd = self._receiving("recv_async", dir, shape, dtype)
        size = self._values.type_of(cmd.shape, self._dtype(cmd.dtype)).nbytes
        tcm = self._arena.alloc(size)
        handle = TransferHandle(self)
        command = handle.command

        def arrived(records: Records) -> None:  # outside the kernel
            if not cmd.received:  # it was cancelled
                return
            message = cmd.received[0]
            self._check_received("recv_async", cmd, message)
            value = message.value
            assert isinstance(value, Value)
            command.finish(records, self._handle(cmd.shape, cmd.dtype, "tcm", tcm.address, value, tcm, records))

        self._has_pending = True
        command.number = self._issue_message(cmd, arrived)
        self._receives[command.number] = cmd.line
        return handle

    def ended(self, returned: object) -> object:
        """Called when the kernel's function has returned; raises KernelError for a receive that it never waited for."""
        for line in self._receives.values():
            more = f", nor are {len(self._receives) - 1} others" if len(self._receives) > 1 else ""
            raise KernelError(
                f"the kernel ends, and its recv_async at {line} is never waited for{more}",
                where=line,
                hint="tl.wait(handle) returns the tensor; tl.wait() waits for all that is under way",
            )
        return returned

    def _receive(
        self, op: str, dir: str | None, shape: object, dtype: object, *, reads_slots: bool = True
    ) -> TensorHandle:
        cmd = self._receiving(op, dir, shape, dtype, reads_slots)
        records = self._call(cmd)
        message = cmd.received[0]
        try:
            self._check_received(op, cmd, message)
        except KernelError as error:
            raise at_kernel_line(error) from None
        value = message.value
        assert isinstance(value, Value)
        return self._new(value, records)

    def _receiving(self, op: str, dir: str | None, shape: object, dtype: object, reads_slots: bool = True) -> RecvCmd:
        self._communicator(op)
        direction = None if dir is None else self._direction(op, dir)
        if shape is None:
            self._fail(f"{op}: no shape", f'say what was sent, its shape and its dtype: tl.{op}({dir!r}, (64,), "f16")')
        dims, element = self._shape(op, shape), self._dtype(dtype)
        return RecvCmd(direction, dims, element.name, self._next_name(), kernel_line(), reads_slots)

    def _check_received(self, op: str, cmd: RecvCmd, message: Message) -> None:
        sip, cube, pe = message.sender
        sender = f"sip{sip}.cube{cube}.pe{pe} (to its {message.direction})"
        theirs, own = message.origin, self._origin
        if theirs.key != own.key and (theirs.tag != own.tag or theirs.has(self._env.place)):
            raise KernelError(
                f"{op} at {cmd.line} from {cmd.direction or ANY} gets a message of another launch, sent at "
                f"{message.line} by {sender}",
                hint="every message that a launch, or a collective, sends to its own PEs must be received by it",
            )
        if (message.shape, message.dtype) != (cmd.shape, cmd.dtype):
            raise KernelError(
                f"{op} at {cmd.line} from {cmd.direction or ANY} expects {cmd.dtype}{list(cmd.shape)}, but "
                f"{message.dtype}{list(message.shape)} was sent at {message.line} by {sender}",
                hint="give both the same shape and dtype",
            )

    # ---- inside

    @cached_property
    def _origin(self) -> LaunchOrigin:
        return self._env.launch.origin

    def _communicator(self, op: str) -> Communicator:
        found = self._env.communicator
        if found is None:
            self._fail(
                f"{op}: this launch has no communicator, so its PEs have no neighbours",
                "call torch.distributed.init_process_group('ahbm') or torch.install_ipcq() before the launch",
            )
        return found

    def _direction(self, op: str, dir: object) -> str:
        if not isinstance(dir, str):
            here = ", ".join(self._communicator(op).directions_of(self._env.place)) or "none"
            self._fail(f"{op}: the direction is a {type(dir).__name__}", f"give one of this PE's directions: {here}")
        return dir

    def _issue_message(self, cmd: EngineCommand, done: RecordsCallback) -> int:
        try:
            return self._runner.issue(cmd, done)
        except KernBenchError as error:
            raise at_kernel_line(error) from None
