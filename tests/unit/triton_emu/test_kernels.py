"""How kernels run: control flow on data, memory as it is at the time, places, TCM, mistakes at the user's own line."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from kernbench.common.errors import KernelError, LaunchError, UsageError
from kernbench.testing import run_kernel
from kernbench.topology import load_topology
from kernbench.triton_emu.pointer import TensorPtr
from kernbench.triton_emu.registry import clear_registry, get_kernel, register_kernel


def f16(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float16)


def failure(kernel, *args, **options):
    """The failure of a kernel that must fail."""
    with pytest.raises(LaunchError) as caught:
        run_kernel(kernel, *args, **options)
    return caught.value.failures[0]


def assert_line(found, kernel, text):
    """The failure names the line of `kernel` that holds `text`."""
    lines, first = inspect.getsourcelines(kernel)
    (at,) = [first + i for i, line in enumerate(lines) if text in line]
    assert (found.file, found.line) == (__file__, at)
    assert text in found.source_line


class TestData:
    def test_a_kernel_branches_on_what_it_loads(self):
        def kernel(flag, out, tl):
            if tl.load(flag, (1,)) > 0.5:
                tl.store(out, tl.full((4,), 1.0))
            else:
                tl.store(out, tl.full((4,), 2.0))

        for value, expected in ((1.0, 1.0), (0.0, 2.0)):
            arrays = run_kernel(kernel, np.array([value], np.float16), np.zeros(4, np.float16)).arrays
            assert (arrays[1] == expected).all()

    def test_a_kernel_branches_on_what_it_computes(self):
        def kernel(x, out, tl):
            v = tl.load(x)
            steps = 0
            while float(tl.max(tl.abs(v))) > 1:
                v = v / 2
                steps += 1
            assert int(tl.sum(tl.full((3,), steps, "i32"))) == 3 * steps
            tl.store(out, v)

        x = np.array([8.0, -3.0, 1.0, 0.5], np.float16)
        assert (run_kernel(kernel, x, np.zeros(4, np.float16)).arrays[1] == x / 8).all()

    def test_a_load_sees_stores_that_are_acknowledged(self):
        def kernel(x, tl):
            tl.store(x + 4, tl.full((2,), 7.0))
            before = tl.load(x)
            tl.store(x, tl.full((1,), 9.0))
            tl.store(x + 8, before[:2] + tl.load(x, (2,)))

        (x,) = run_kernel(kernel, np.arange(6, dtype=np.float16)).arrays
        assert list(x) == [9, 1, 7, 7, 0 + 9, 1 + 1]

    def test_a_value_taken_is_not_changed_by_later_stores(self):
        def kernel(x, tl):
            old = tl.load(x)
            tl.store(x, old * 0)
            tl.store(x, old + tl.load(x))

        x = f16(8)
        assert (run_kernel(kernel, x).arrays[0] == x).all()

    def test_scalars_reach_a_kernel_as_they_are(self):
        seen = []

        def kernel(n, factor, flag, tl):
            seen.append((n, factor, flag))

        run_kernel(kernel, 1 << 40, 0.1, True)
        assert seen == [(1 << 40, 0.1, True)]
        assert [type(item) for item in seen[0]] == [int, float, bool]

    def test_tl_may_stand_anywhere(self):
        seen = []

        def first(tl, a, b=5):
            seen.append((a, b))

        def middle(a, tl, b):
            seen.append((a, b))

        def last(a, b=7, *, tl):
            seen.append((a, b))

        def defaulted(a, b=8, tl=None):
            seen.append((a, b, tl is not None))

        for kernel, args in ((first, (1, 2)), (middle, (1, 2)), (last, (1,)), (defaulted, (1,))):
            run_kernel(kernel, *args)
        assert seen == [(1, 2), (1, 2), (1, 7), (1, 8, True)]

    def test_programs_are_numbered_by_pe_cube_and_sip(self):
        def kernel(out, tl):
            pe, cube = tl.program_id(0), tl.program_id(1)
            n = cube * tl.num_programs(0) + pe
            assert (tl.program_id(2), tl.num_programs(2)) == (0, 1)
            tl.store(out + 4 * n, tl.full((1,), 10 * cube + pe, "i32"))

        (out,) = run_kernel(kernel, np.zeros(6, np.int32), grid=(3, 2)).arrays
        assert list(out) == [0, 1, 2, 10, 11, 12]

    def test_a_pointer_knows_its_tensor_and_adds_as_an_integer(self):
        def kernel(x, tl):
            assert isinstance(x, TensorPtr)
            assert (x.shape, x.dtype) == ((4, 6), "f16")
            assert (x + 2).base is x  # it remembers the tensor that it was counted from
            assert "f16[4, 6]" in repr(x)

        run_kernel(kernel, f16(4, 6))


class TestTcm:
    SMALL = load_topology(
        None,
        {
            "system.sips.count": 1,
            "sip.cube_mesh.w": 1,
            "sip.cube_mesh.h": 1,
            "cube.memory_map.tcm_mb_per_pe": 16 / 1024,
            "cube.memory_map.tcm_scheduler_reserved_mb": 8 / 1024,
        },
    )

    def test_overflow_says_what_is_required_free_and_the_limit(self):
        def kernel(x, tl):
            a = tl.zeros((2048,))
            b = tl.zeros((1024,))
            c = tl.load(x)
            del a, b, c

        found = failure(kernel, f16(2048), topology=self.SMALL)
        assert found.kind == "KernelCapacityError"
        assert "4096 bytes (4 KiB) required, 2048 free of 8192" in found.message
        assert "del x" in found.hint
        assert "raise cube.memory_map.tcm_mb_per_pe" in found.hint
        assert_line(found, kernel, "c = tl.load(x)")

    def test_dropped_tensors_give_their_room_back(self):
        seen = []

        def kernel(x, tl):
            for _ in range(20):
                v = tl.load(x) + 1  # two blocks of 2048 bytes at a time, three while the next is made
            view = v[3:5]
            del v
            seen.extend([float(view[0]), float(view[1])])

        x = f16(1024)
        run_kernel(kernel, x, topology=self.SMALL)
        one = x.dtype.type(1)  # numpy 1 adds a Python int in double precision
        assert seen == [x[3] + one, x[4] + one]

        def keeper(x, tl):
            kept = []
            for _ in range(20):
                kept.append(tl.load(x))  # 8192 bytes hold four

        found = failure(keeper, x, topology=self.SMALL)
        assert "2048 bytes (2 KiB) required, 0 free of 8192" in found.message

    def test_a_view_keeps_its_block(self):
        def kernel(tl):
            part = tl.zeros((2048,))[:4]
            tl.zeros((2048,))
            tl.zeros((2049,))  # 4098 bytes, and 4096 are free
            del part

        assert_line(failure(kernel, topology=self.SMALL), kernel, "tl.zeros((2049,))")

        def dropped(tl):
            part = tl.zeros((2048,))[:4]
            del part
            tl.zeros((2049,))

        run_kernel(dropped, topology=self.SMALL)

    def test_operands_of_a_composite_keep_their_room_until_it_is_done(self):
        def kernel(a, early, tl):
            h = tl.composite("gemm", tl.load(a), tl.load(a).T, tile_shape=(8, 8, 8))
            if early:
                tl.zeros((1025,))  # two operands and the result hold 3 x 2048 of 8192 bytes
            tl.wait(h)
            tl.zeros((2048,))

        run_kernel(kernel, f16(32, 32), False, topology=self.SMALL)
        assert_line(failure(kernel, f16(32, 32), True, topology=self.SMALL), kernel, "tl.zeros((1025,))")

    def test_a_tensor_that_outlives_its_kernel_is_harmless(self):
        keep = []

        def kernel(x, tl):
            keep.append((tl, tl.load(x)))

        run_kernel(kernel, f16(1024), topology=self.SMALL)
        tl, x = keep.pop()
        with pytest.raises(KernelError, match="after its kernel has ended"):
            tl.zeros((4,))
        del x


class TestOutside:
    """`tl` is its kernel's, while that runs: nothing else can wait for its commands."""

    @pytest.mark.parametrize(
        "call",
        [
            lambda tl, p, x: tl.cycles(3),
            lambda tl, p, x: tl.wait(),
            lambda tl, p, x: tl.load(p),
            lambda tl, p, x: tl.store(p, x),
            lambda tl, p, x: x + 1,
            lambda tl, p, x: tl.dot(x, x),
            lambda tl, p, x: tl.composite("math", tl.ref(p), out_ptr=p, math_op="exp"),
        ],
    )
    def test_what_takes_time_is_refused_after_the_kernel_has_ended(self, call):
        keep = []

        def kernel(p, tl):
            keep.append((tl, p, tl.load(p)))

        run_kernel(kernel, f16(4, 4))
        with pytest.raises(KernelError, match="after its kernel has ended") as caught:
            call(*keep.pop())
        assert caught.value.where.startswith(__file__)

    def test_one_kernel_cannot_use_the_tl_of_another(self):
        keep = []

        def kernel(tl):
            keep.append(tl)
            keep[0].cycles(2)  # of the first PE

        found = failure(kernel, grid=(2,))
        assert_line(found, kernel, "keep[0].cycles(2)")
        assert "tl is used outside its kernel" in found.message
        assert found.pe == 1


def bad_shape(x, y, tl):
    a = tl.load(x)
    tl.add(a, tl.load(y))


def bad_dtype(x, y, tl):
    tl.load(x, dtype="f32")


def bad_store_dtype(x, y, tl):
    tl.store(x, tl.zeros((4,), "f32"))


def bad_store_dtype_and_size(x, y, tl):
    tl.store(x, tl.zeros((25,), "f32"))  # 100 bytes of 96


def bad_pointer(x, y, tl):
    tl.load(tl.load(x))


def bad_pointer_arithmetic(x, y, tl):
    tl.load(x * 1.0)


def bad_plain_address(x, y, tl):
    tl.load(x + 2)


def bad_space(x, y, tl):
    tl.exp(tl.ref(x))


def bad_end(x, y, tl):
    tl.load(x + 8, (60,))


def bad_address(x, y, tl):
    tl.load(12345, (4,))


def bad_operand(x, y, tl):
    tl.load(x) + "one"


def bad_axis(x, y, tl):
    tl.sum(tl.load(x), axis=2)


def bad_index(x, y, tl):
    tl.load(x)[9]


def bad_bool(x, y, tl):
    if tl.load(x) > 0:
        pass


def bad_inner(x, y, tl):
    tl.dot(tl.load(x), tl.load(x))


def bad_reshape(x, y, tl):
    tl.reshape(tl.load(x), (5, 5))


def bad_shape_argument(x, y, tl):
    tl.zeros((4, -1))


def bad_scalar(x, y, tl):
    tl.cast(tl.load(x), "i8") + 1000


def bad_program(x, y, tl):
    tl.program_id(3)


def bad_cycles(x, y, tl):
    tl.cycles(-1)


def bad_python(x, y, tl):
    n = 0
    return 1 / n


def helper(tl, x):
    return tl.load(x, (-1,))


def bad_helper(x, y, tl):
    helper(tl, x)


@pytest.mark.parametrize(
    ("kernel", "text", "complaint"),
    [
        (bad_shape, "tl.add(", "shapes (8, 6) and (5,) do not broadcast"),
        (bad_dtype, "tl.load(", "no shape for f16 read as f32"),
        (bad_store_dtype, "tl.store(", "holds f16, got f32\n  hint:  tl.cast(value, 'f16') first"),
        (bad_store_dtype_and_size, "tl.store(", "holds f16, got f32\n  hint:  tl.cast(value, 'f16') first"),
        (bad_pointer, "tl.load(tl", "the pointer is a TensorHandle"),
        (bad_pointer_arithmetic, "tl.load(", "the pointer is a float"),
        (bad_plain_address, "tl.load(", "load: no shape"),
        (bad_space, "tl.exp(", "a reference to memory, expected a tensor in TCM"),
        (bad_end, "tl.load(", "120 bytes at offset 8 run past 'x', which has 96 bytes (32 too many)"),
        (bad_address, "tl.load(", "0x3039 is in no tensor of this kernel"),
        (bad_operand, '+ "one"', "an operand is a str"),
        (bad_axis, "tl.sum(", "axis 2 of a tensor of 2 dimensions"),
        (bad_index, "[9]", "index 9 of an axis of 8"),
        (bad_bool, "if tl.load", "bool() of a tensor of shape (8, 6)"),
        (bad_inner, "tl.dot(", "the inner sizes differ"),
        (bad_reshape, "tl.reshape(", "(8, 6) has 48 elements and does not fit (5, 5)"),
        (bad_shape_argument, "tl.zeros(", "shape is (4, -1)"),
        (bad_scalar, "+ 1000", "does not fit i8"),
        (bad_program, "tl.program_id", "use 0 (PE), 1 (cube) or 2 (SIP)"),
        (bad_cycles, "tl.cycles", "cycles(-1)"),
        (bad_python, "return 1 / n", "division by zero"),
        (bad_helper, "", "shape is (-1,)"),
    ],
)
def test_mistakes_name_the_users_line(kernel, text, complaint):
    found = failure(kernel, f16(8, 6), f16(5))
    assert complaint in f"{found.message}\n  hint:  {found.hint}"
    if kernel is bad_helper:
        assert_line(found, helper, "return tl.load")
    else:
        assert_line(found, kernel, text)
    assert (found.sip, found.cube, found.pe) == (0, 0, 0)


def test_a_launch_with_the_wrong_number_of_arguments_says_so():
    def kernel(a, b, tl):
        pass

    found = failure(kernel, 1)
    assert "kernel kernel(a, b, tl) does not take 1 arguments: missing a required argument: 'b'" in found.message


def test_one_failing_pe_is_named():
    def kernel(tl):
        if tl.program_id(0) == 2:
            raise ValueError("not here")

    found = failure(kernel, grid=(4,))
    assert (found.kind, found.message, found.pe) == ("ValueError", "not here", 2)


def test_a_kernel_may_catch_its_own_mistake_and_go_on():
    def kernel(x, tl):
        with pytest.raises(KernelError, match="run past"):
            tl.load(x, (1000,))
        tl.store(x, tl.full((4,), 3.0))

    assert (run_kernel(kernel, f16(4)).arrays[0] == 3).all()


class TestRegistry:
    def test_a_kernel_is_found_by_name_and_a_name_is_taken_once(self):
        clear_registry()

        def one(tl): ...

        def two(tl): ...

        register_kernel("one", one)
        register_kernel("one", one)
        assert get_kernel("one") is one
        with pytest.raises(UsageError, match="kernel 'one' already"):
            register_kernel("one", two)
        with pytest.raises(UsageError, match="no kernel 'two'"):
            get_kernel("two")
        clear_registry()
        with pytest.raises(UsageError, match="no kernel 'one'"):
            get_kernel("one")


class TestNumpyNumbers:
    """Scalars reach a kernel as they were passed, so numpy's whole numbers are sizes, offsets and indices too."""

    def test_numpy_integers_are_sizes_offsets_indices_and_axes(self):
        def kernel(x, out, n, tl):
            part = tl.load(x + 2 * n, (n,))
            tl.cycles(n)
            grown = tl.reshape(part, n // 2, 2)[n - n] + tl.full((n - 2,), n)
            tl.store(out + 2 * tl.program_id(n - n), grown)
            h = tl.composite("gemm", tl.ref(x, (n, n)), tl.ref(x, (n, n)), out + 4 * n, tile_shape=(n, n, n))
            tl.wait(h)

        x = np.arange(16, dtype=np.float16)
        arrays, _ = run_kernel(kernel, x, np.zeros(24, np.float16), np.int64(4))
        # x[4:8] as 2 x 2, row 0 is (4, 5), and 4 more each; then the square of x from element 8 on.
        assert arrays[1][:2].tolist() == [8.0, 9.0]
        assert (arrays[1][8:].reshape(4, 4) == x.reshape(4, 4) @ x.reshape(4, 4)).all()

    def test_a_numpy_number_on_the_left_is_one_op(self):
        def kernel(x, tl):
            before = tl.load(x)
            after = np.float32(2) * before
            assert after.shape == before.shape
            tl.store(x, after)

        arrays, _ = run_kernel(kernel, np.array([1, 2, 3, 4], np.float16))
        assert arrays[0].tolist() == [2, 4, 6, 8]

    def test_a_numpy_number_is_a_field_of_an_epilogue(self):
        def kernel(x, out, tl):
            tl.composite(
                "math", tl.ref(x), math_op="abs", out_ptr=out, epilogue=[{"op": "scale", "factor": np.int8(3)}]
            )

        x = np.array([[-1, 2]], np.float16)
        assert run_kernel(kernel, x, np.zeros_like(x)).arrays[1].tolist() == [[3, 6]]

    def test_an_array_is_no_operand(self):
        def kernel(x, tl):
            np.ones(4) + tl.load(x)  # at fault

        found = failure(kernel, f16(4))
        assert_line(found, kernel, "# at fault")
        assert "ndarray" in found.message


class TestWhatIsNoKernel:
    def test_arguments_that_do_not_fit_are_said_at_the_kernel(self):
        def kernel(x, y, tl): ...  # is given one

        found = failure(kernel, f16(4))
        assert_line(found, kernel, "# is given one")
        assert "does not take 1 arguments" in found.message

    def test_generators_and_coroutines_are_refused(self):
        def generator(x, tl):
            yield tl.load(x)

        async def coroutine(x, tl): ...

        class Yields:
            def __call__(self, x, tl):
                yield tl.load(x)

        for kernel in (generator, coroutine, Yields(), partial(Yields()), partial(generator)):
            with pytest.raises(UsageError, match="plain function"):
                run_kernel(kernel, f16(4))

    def test_a_kernel_that_returns_a_generator_is_refused_because_it_would_not_run(self):
        with pytest.raises(LaunchError, match="returned a generator"):
            run_kernel(lambda x, tl: (tl.load(x) for _ in range(2)), f16(4))

    @pytest.mark.parametrize("builtin", [max, dict])
    def test_a_callable_that_does_not_tell_its_parameters_is_refused(self, builtin):
        with pytest.raises(KernelError, match="has no signature") as refused:
            run_kernel(builtin, f16(4))
        assert refused.value.hint == "write a function that calls it: def k(x, tl)"

    def test_an_object_that_cannot_be_hashed_may_be_a_kernel(self):
        @dataclass
        class Adds:
            amount: int

            def __call__(self, x, tl):
                tl.store(x, tl.load(x) + self.amount)

        for amount in (2, 3):
            (found,), _ = run_kernel(Adds(amount), np.zeros(4, np.float16))
            assert (found == amount).all()

    def test_a_kernel_that_exits_ends_only_itself(self):
        def kernel(x, tl):
            sys.exit(4)

        found = failure(kernel, f16(4))
        assert found.kind == "SystemExit"
        assert_line(found, kernel, "sys.exit(4)")

    @pytest.mark.parametrize(
        ("call", "says"),
        [
            (lambda tl, x: tl.arange(0, 300, "i8"), "0 to 299 do not fit i8"),
            (lambda tl, x: tl.program_id(1.0), "axis 1.0"),
            (lambda tl, x: tl.load(x)[1.0:2], "slice"),
            (lambda tl, x: tl.composite("math", tl.ref(x), math_op="exp", epilogue={"op": "relu"}), "epilogue is"),
            (lambda tl, x: tl.composite("math", tl.ref(x), math_op="exp", epilogue=3), "epilogue is 3"),
        ],
    )
    def test_mistakes_are_said_in_tls_own_words(self, call, says):
        def kernel(x, tl):
            call(tl, x)

        found = failure(kernel, f16(4))
        assert found.kind == "KernelError"
        assert says in found.message
