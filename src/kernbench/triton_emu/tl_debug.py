"""`tl`: prints and assertions of a kernel. They take no simulated time and use no engine."""

from __future__ import annotations

from kernbench.common.errors import KernelError
from kernbench.common.ids import PeId
from kernbench.triton_emu.call_site import kernel_line
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.tl_core import TlCore


class TlDebug(TlCore):
    """Prints and assertions, under Triton's names."""

    def device_print(self, prefix: object, *args: object, hex: bool = False) -> None:
        """Print `prefix` and the arguments, with the simulated time and the PE in front: `[1106.6 ns sip0.cube0.pe1] x
        3`. Tensors show their numbers, with `hex` whole ones as hexadecimals. Engine: none.

        The launch is run on every PE then, also where `repeatable` would have let one replay another.
        """
        shown = [self._shown(arg, hex) for arg in (prefix, *args)]
        place = PeId(*self._env.place)
        print(f"[{self._runner.now_ns:.1f} ns {place}]", *shown, flush=True)

    def device_assert(self, cond: object, msg: str = "", mask: TensorHandle | None = None) -> None:
        """Fail at this line unless all of `cond` holds, where `mask` does. A look at numbers. Engine: none."""
        self._assert("device_assert", cond, msg, mask)

    def static_assert(self, cond: object, msg: str = "") -> None:
        """Fail at this line unless `cond` holds. Engine: none."""
        self._assert("static_assert", cond, msg, None)

    static_print = staticmethod(print)

    def _assert(self, name: str, cond: object, msg: str, mask: TensorHandle | None) -> None:
        if isinstance(cond, TensorHandle):
            kept = cond.numpy().astype(bool)
            holds = bool((kept | ~mask.numpy().astype(bool)).all()) if mask is not None else bool(kept.all())
        else:
            holds = bool(cond)
        if not holds:
            raise KernelError(f"{name} failed" + (f": {msg}" if msg else ""), where=kernel_line())

    @staticmethod
    def _shown(arg: object, as_hex: bool) -> str:
        if as_hex and isinstance(arg, int) and not isinstance(arg, bool):
            return f"{arg:#x}"
        if as_hex and isinstance(arg, TensorHandle) and not arg.is_reference:
            numbers = arg.tl.known_numbers(arg)
            if numbers is not None and numbers.dtype.kind in "iu":
                listed = ", ".join(f"{int(n):#x}" for n in numbers.reshape(-1))
                return f"{arg.dtype}{list(arg.shape)} [{listed}]"
        return str(arg)
