"""What blocks cost and how they are refused: masks, strides, row numbers, asynchronous transfers, atomics.

On the tiny machine a PE reads its own HBM slice over two links of 256 GB/s: a flit of 256 bytes takes 1 ns on each, a
burst 8 ns on one of 8 channels, the router 2 ns each way, and PE_SCHEDULER 1 ns per command.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.common.errors import LaunchError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.testing import run_kernel
from kernbench.topology import load_topology

SMALL = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
DMA = "cube.pe_template.components.pe_dma.attrs"


def machine(**attrs: int):
    changes = {f"{DMA}.{name}": value for name, value in attrs.items()}
    return load_topology(
        None,
        {
            "system.sips.count": 1,
            "sip.cube_mesh.w": 1,
            "sip.cube_mesh.h": 1,
            "cube.pe_layout.pe_per_corner": 1,
            **changes,
        },
    )


def time_of(kernel, *args, **attrs):
    return run_kernel(kernel, *args, topology=machine(**attrs)).time_ns


def ops_of(kernel, *args):
    log = OpLog()
    run_kernel(kernel, *args, topology=machine(), op_log=log)
    return [record for record in log.records if record.op_name.startswith(("dma", "atomic"))]


def message_of(kernel, *args, **kwargs):
    with pytest.raises(LaunchError) as caught:
        run_kernel(kernel, *args, **kwargs)
    return f"{caught.value.failures[0].message}\n{caught.value.failures[0].hint}"


class TestCosts:
    X = np.zeros((64, 1024), np.float32)

    def test_lanes_that_are_masked_out_cost_nothing(self):
        def few(x, tl):
            tl.load(x, (64,))

        def masked(x, tl):
            tl.load(x, (1024,), mask=tl.arange(0, 1024) < 64)

        def none(x, tl):
            tl.load(x, (1024,), mask=False)

        # The comparison that makes the mask takes PE_MATH 8 ns (1024 lanes of i32 at 128 per ns) and 1 ns to issue.
        assert time_of(masked, self.X) == time_of(few, self.X) + 9
        assert time_of(none, self.X) == 0

    @pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
    def test_a_run_of_one_burst_takes_the_textbook_sum(self):
        """1 to issue, 2 for the router there, 8 for the burst, 2 links of 1 ns, 2 for the router back."""

        def kernel(x, tl):
            tl.load(x, (64,))

        assert time_of(kernel, self.X) == 1 + 2 + 8 + 2 * 1 + 2

    @pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
    def test_a_strided_block_is_one_request_whose_runs_follow_each_other(self):
        """8 rows of 64 bytes, each in a burst of its own channel: one burst time for all, then 0.25 ns per run on the
        first link and once more on the second.
        """

        def kernel(x, tl):
            tl.load(x, (8, 16), strides=(1024 + 64, 1))

        assert time_of(kernel, self.X) == 1 + 2 + 8 + 8 * 0.25 + 0.25 + 2
        (read,) = ops_of(kernel, self.X)
        assert read.params["nbytes"] == 8 * 64
        assert "requests" not in read.params

    @pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
    def test_runs_on_one_channel_wait_for_it_each(self):
        """Rows 1024 elements apart all start on channel 0: eight bursts of 8 ns, one after the other."""

        def kernel(x, tl):
            tl.load(x, (8, 16), strides=(1024, 1))

        # 4 KiB apart: burst number 16 * row, which is channel 0 of 8 for every row
        assert time_of(kernel, self.X) == 1 + 2 + 8 * 8 + 2 * 0.25 + 2

    @pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
    def test_runs_of_several_lengths_are_a_request_each_and_wait_for_a_place(self):
        def kernel(x, tl):
            tl.load(x, (4, 64), rows=[0, 3, 4, 9])

        narrow = np.zeros((64, 64), np.float32)
        (read,) = ops_of(kernel, narrow)
        assert read.params["requests"] == 3  # rows 3 and 4 are one run, 0 and 9 one each
        assert read.params["nbytes"] == 4 * 256
        one, two, many = (time_of(kernel, narrow, outstanding=n) for n in (1, 2, 8))
        # One after the other each takes its 14 ns, the second one flit more; side by side only the flits add up.
        assert one == 1 + 14 + 15 + 14
        assert many == 1 + 14 + 3
        assert many < two < one

    @pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
    def test_a_row_that_is_asked_for_twice_is_read_once(self):
        def twice(x, tl):
            assert tl.load(x, (2, 64), rows=[5, 5]).numpy().tolist() == [[5.0] * 64] * 2

        def once(x, tl):
            tl.load(x, (1, 64), rows=[5])

        narrow = np.repeat(np.arange(64, dtype=np.float32)[:, np.newaxis], 64, axis=1)
        (read,) = ops_of(twice, narrow)
        assert read.params["nbytes"] == 256
        assert time_of(twice, narrow) == time_of(once, narrow) == 1 + 14

    @pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
    def test_the_order_of_rows_does_not_matter(self):
        """Both are bursts 5 and 9, on channels 5 and 1: one request, whose second flit is 1 ns behind the first."""

        def rising(x, tl):
            assert tl.load(x, (2, 64), rows=[5, 9]).numpy()[:, 0].tolist() == [5, 9]

        def falling(x, tl):
            assert tl.load(x, (2, 64), rows=[9, 5]).numpy()[:, 0].tolist() == [9, 5]

        narrow = np.repeat(np.arange(64, dtype=np.float32)[:, np.newaxis], 64, axis=1)
        assert time_of(rising, narrow) == time_of(falling, narrow) == 1 + 14 + 1

    @pytest.mark.parametrize("op", ["load", "store"])
    def test_lanes_in_one_burst_are_one_access(self, op):
        """Every second f16 of 4,096: 32 bursts of 128 bytes each, four on each channel, as dense."""

        def sparse(x, tl):
            lanes = tl.load(x, (2048,), strides=(2,)) if op == "load" else tl.full((2048,), 1.0, "f16")
            if op == "store":
                tl.store(x, lanes, strides=(2,))

        def dense(x, tl):
            lanes = tl.load(x, (4096,)) if op == "load" else tl.full((4096,), 1.0, "f16")
            if op == "store":
                tl.store(x, lanes)

        x = np.zeros(4096, np.float16)
        with RuntimeContext(GraphEngine(machine())) as torch:
            launch = torch.launch("k", sparse, torch.from_numpy(x))
            assert launch.bytes_hbm == 32 * 256
            assert launch.pes[0].bytes_hbm_requested == 4096
        assert time_of(sparse, x) <= time_of(dense, x)

    def test_a_burst_that_two_runs_share_is_paid_once(self):
        """Bytes 128 to 320 and 384 to 576: burst 1 has the end of the one run and the beginning of the other."""

        def kernel(x, tl):
            tl.load(x + 128, (2, 48), strides=(64, 1))

        with RuntimeContext(GraphEngine(machine())) as torch:
            launch = torch.launch("k", kernel, torch.from_numpy(self.X))
            assert launch.bytes_hbm == 3 * 256
            assert launch.pes[0].bytes_hbm_requested == 2 * 192

    def test_a_run_pays_whole_bursts_where_it_touches_them(self):
        """64 bytes at offset 224 lie in two bursts."""

        def kernel(x, tl):
            tl.load(x + 224, (16,))

        with RuntimeContext(GraphEngine(machine())) as torch:
            launch = torch.launch("k", kernel, torch.from_numpy(self.X))
            assert launch.bytes_hbm == 2 * 256

    def test_a_stride_of_zero_repeats_elements_that_are_read_once(self):
        def kernel(x, tl):
            assert tl.load(x, (3, 4), strides=(0, 1)).numpy().tolist() == [[0, 1, 2, 3]] * 3
            tl.store(x, tl.reshape(tl.arange(0, 6, "f32"), (3, 2)), strides=(0, 1))  # the last row stays

        x = np.arange(64, dtype=np.float32)
        assert run_kernel(kernel, x).arrays[0].tolist() == [4, 5, *range(2, 64)]
        assert ops_of(kernel, x)[0].params["nbytes"] == 16


class TestBlocksOfATriton:
    """Habits of Triton authors that work as they expect."""

    def test_a_program_whose_block_is_wholly_past_the_end_is_masked_out(self):
        def add(x, y, out, n, tl):
            at = tl.program_id(0) * 256
            inside = at + tl.arange(0, 256) < n
            a, b = (tl.load(p + at * p.itemsize, (256,), mask=inside) for p in (x, y))
            tl.store(out + at * out.itemsize, a + b, mask=inside)

        x = np.arange(600, dtype=np.float32)
        arrays, _ = run_kernel(add, x, x, np.zeros_like(x), 600, grid=(5,))
        assert (arrays[2] == 2 * x).all()

    def test_a_loaded_number_counts_bytes_from_a_pointer(self):
        def kernel(table, ids, out, tl):
            at = tl.load(ids, (1,))
            tl.store(out, tl.load(table + at * 16, (4,)))

        table = np.arange(16, dtype=np.float32)
        arrays, _ = run_kernel(kernel, table, np.array([2], np.int32), np.zeros(4, np.float32))
        assert arrays[2].tolist() == [8, 9, 10, 11]


class TestAsync:
    def test_double_buffering_by_hand_hides_the_loads(self):
        x = np.ones((16, 4096), np.float32)

        def plain(x, out, tl):
            total = tl.zeros((1, 1), "f32")
            for at in range(16):
                total = total + tl.sum(tl.load(x + at * 16384, (4096,)), axis=0, keep_dims=True)
            tl.store(out, tl.reshape(total, (1,)))

        def buffered(x, out, tl):
            total, coming = tl.zeros((1, 1), "f32"), tl.load_async(x, (4096,))
            for at in range(16):
                block = tl.wait(coming)
                if at < 15:
                    coming = tl.load_async(x + (at + 1) * 16384, (4096,))
                total = total + tl.sum(block, axis=0, keep_dims=True)
            tl.store(out, tl.reshape(total, (1,)))

        out = np.zeros(1, np.float32)
        slow, fast = (run_kernel(kernel, x, out, topology=machine()) for kernel in (plain, buffered))
        assert slow.arrays[1][0] == fast.arrays[1][0] == 16 * 4096
        # A load takes 1 + 77 ns (16 KiB at 256 GB/s and 13 ns), a sum 32 + 1 and an addition 1 + 1.
        assert slow.time_ns - fast.time_ns >= 15 * 30

    def test_a_load_waits_for_an_asynchronous_store_to_the_same_bytes(self):
        def kernel(x, out, tl):
            tl.store_async(x + 16, tl.full((4,), 7, "f32"))
            tl.store(out, tl.load(x, (8,)))

        arrays, _ = run_kernel(kernel, np.arange(8, dtype=np.float32), np.zeros(8, np.float32))
        assert arrays[1].tolist() == [0, 1, 2, 3, 7, 7, 7, 7]

    def test_a_store_waits_for_an_asynchronous_load_of_the_same_bytes(self):
        def kernel(x, out, tl):
            coming = tl.load_async(x, (4096,))
            tl.store(x + 16, tl.full((4,), 7, "f32"))
            tl.store(out, tl.wait(coming))

        x = np.arange(4096, dtype=np.float32)
        arrays, _ = run_kernel(kernel, x, np.zeros(4096, np.float32))
        assert (arrays[1] == x).all()
        assert arrays[0][4:8].tolist() == [7] * 4

    def test_wait_returns_what_a_load_brought_and_nothing_for_a_store(self):
        def kernel(x, tl):
            assert tl.wait(tl.load_async(x)).numpy().tolist() == [1, 2]
            assert tl.wait(tl.store_async(x, tl.full((2,), 3, "f32"))) is None
            tl.store_async(x, tl.full((2,), 4, "f32"))  # not waited for: the kernel ends when it is done

        arrays, _ = run_kernel(kernel, np.array([1, 2], np.float32))
        assert arrays[0].tolist() == [4, 4]

    def test_many_loads_under_way_are_compared_with_a_store_by_their_ranges(self):
        """Rows 0, 2, 4, ... are read and rows 1, 3, 5, ... written meanwhile: the store waits for no load."""
        evens, odds = list(range(0, 64, 2)), list(range(1, 64, 2))

        def apart(x, tl):
            tl.load_async(x, rows=evens)
            tl.store(x, tl.full((32, 1024), 1.0, "f32"), rows=odds)

        def alike(x, tl):
            handle = tl.load_async(x, rows=evens)
            tl.store(x, tl.full((32, 1024), 1.0, "f32"), rows=[*odds[:-1], 0])
            assert (tl.wait(handle).numpy() == 0).all()

        x = np.zeros((64, 1024), np.float32)
        assert time_of(apart, x) < time_of(alike, x)

    def test_a_load_that_finds_nothing_fails_its_kernel_where_it_is_waited_for(self):
        def waited(x, tl):
            handle = tl.load_async(x)
            tl.wait(handle)

        def all_waited(x, tl):
            tl.load_async(x)
            tl.wait()

        def not_waited(x, tl):
            tl.load_async(x)

        def stored_to(x, tl):
            tl.load_async(x)
            tl.store(x, tl.full(x.shape, 1.0, "f32"))

        lines = {waited: "tl.wait(handle)", all_waited: "tl.wait()", stored_to: "tl.store(x"}
        for kernel in (waited, all_waited, not_waited, stored_to):
            with RuntimeContext(GraphEngine(machine())) as torch:
                with pytest.raises(LaunchError) as caught:
                    torch.launch("k", kernel, torch.empty(4, 8, dtype="f32"), target_pes=0)
                failure = caught.value.failures[0]
                line = kernel.__code__.co_firstlineno + 1
                assert failure.message.startswith(f"load_async at {__file__}:{line}: 128 of 128 bytes were never")
                assert failure.source_line.startswith(lines.get(kernel, "def not_waited"))
                torch.launch("k", lambda x, tl: tl.load(x), torch.zeros(4, 8, dtype="f32"), target_pes=0)


class TestAtomics:
    def test_memory_without_contents_fails_the_kernel_at_its_line(self):
        def kernel(x, tl):
            tl.atomic_add(x, 1.0)

        with RuntimeContext(GraphEngine(machine())) as torch:
            with pytest.raises(LaunchError) as caught:
                torch.launch("k", kernel, torch.empty(4, 8, dtype="f32"), target_pes=0)
            assert caught.value.failures[0].source_line == "tl.atomic_add(x, 1.0)"
            assert "4 of 4 bytes were never written" in caught.value.failures[0].message

    def test_all_pes_count_on_one_number_and_each_sees_another_state_of_it(self):
        def kernel(counter, seen, tl):
            me = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
            tl.store(seen + me * 4, tl.reshape(tl.atomic_add(counter, 1), (1,)))

        arrays, _ = run_kernel(kernel, np.zeros(1, np.int32), np.full(16, -1, np.int32), grid=(8, 2))
        assert arrays[0][0] == 16
        assert sorted(arrays[1].tolist()) == list(range(16))

    @pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
    def test_the_memory_is_charged_for_the_way_there_and_back(self):
        """1 to issue; there: 2 links and the router, a burst; back: a burst, the router, 2 links. 4 bytes cost 1/64 ns
        on a link.
        """

        def kernel(x, tl):
            tl.atomic_add(x, 1)

        link_ns = 4 / 256
        assert time_of(kernel, np.zeros(64, np.int32)) == 1 + 2 * (2 * link_ns + 2 + 8)

    def test_a_run_that_travels_in_two_parts_changes_memory_once(self):
        """256 bytes from byte 128 on: up to the end of the burst, and the rest."""

        def kernel(x, old, tl):
            tl.store(old, tl.atomic_add(x + 128, tl.full((64,), 3, "i32")))

        arrays, _ = run_kernel(kernel, np.arange(128, dtype=np.int32), np.zeros(64, np.int32))
        np.testing.assert_array_equal(arrays[0], np.arange(128) + np.repeat([0, 3, 0], [32, 64, 32]))
        np.testing.assert_array_equal(arrays[1], np.arange(32, 96))

    def test_compare_and_swap_takes_a_lock_once(self):
        def kernel(lock, owner, tl):
            me = tl.program_id(0) + 1
            if int(tl.atomic_cas(lock, 0, me)) == 0:
                tl.atomic_add(owner, me)

        arrays, _ = run_kernel(kernel, np.zeros(1, np.int32), np.zeros(1, np.int32), grid=(8,))
        assert arrays[0][0] == arrays[1][0] != 0


class TestRefusals:
    X = np.zeros((8, 16), np.float32)

    def test_an_offset_inside_an_element(self):
        def kernel(x, tl):
            tl.load(x + 1, (4,))

        assert "offset 1 of 'x' is inside an element of 4 bytes" in message_of(kernel, self.X)

    def test_a_pointer_that_is_counted_past_its_tensor(self):
        def kernel(x, y, tl):
            tl.load(x + 512, (4,))

        assert "run past 'x', which has 512 bytes" in message_of(kernel, self.X, self.X)

    def test_another_pes_part_with_physical_addresses(self):
        def kernel(x, tl):
            tl.load(x + 64, (16,))

        machine = load_topology(None, {"system.sips.count": 1, "system.address_model": "pa"})
        said = message_of(kernel, self.X, topology=machine, dp=DPPolicy(pe="row_wise", num_cubes=1), grid=(8,))
        assert "run past this PE's part of 'x'" in said
        assert "set system.address_model to va" in said

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ({"shape": (4, 4), "strides": (16,)}, "strides (16,) of a block of shape (4, 4)"),
            ({"shape": (4, 4), "strides": (16, -1)}, "each a whole number of 0 or more"),
            ({"shape": (9, 4), "strides": (16, 1)}, "run past 'x'"),
            ({"rows": [0, 8]}, "row 8 of 'x', which has 8"),
            ({"rows": [0.5]}, "give whole numbers along one axis"),
            ({"rows": [1], "strides": (1, 1)}, "both rows= and strides="),
            ({"rows": [1, 2], "shape": (3, 16)}, "2 rows for a block of shape (3, 16)"),
            ({"rows": [1, 2], "shape": (2, 17)}, "rows of 68 bytes, 'x' has rows of 64"),
            ({"shape": (4,), "other": 1.0}, "other= without mask="),
        ],
    )
    def test_blocks_that_cannot_be(self, arguments, says):
        def kernel(x, tl):
            tl.load(x, **arguments)

        assert says in message_of(kernel, self.X)

    @pytest.mark.parametrize("op", ["and", "or", "xor"])
    def test_bits_of_a_float(self, op):
        def kernel(x, tl):
            getattr(tl, f"atomic_{op}")(x, 1)

        said = message_of(kernel, np.zeros(4, np.float32))
        assert f"atomic_{op}: 'x' holds f32" in said
        assert "bits are for integers" in said

    def test_a_mask_of_another_type_or_shape(self):
        def numbers(x, tl):
            tl.load(x, (4,), mask=tl.arange(0, 4))

        def longer(x, tl):
            tl.load(x, (4,), mask=tl.arange(0, 5) < 3)

        assert "mask is i32" in message_of(numbers, self.X)
        assert "mask has shape (5,), the block (4,)" in message_of(longer, self.X)

    @pytest.mark.parametrize("op", ["load", "load_async"])
    def test_what_masked_lanes_hold_fits_the_tensor(self, op):
        def kernel(x, tl):
            getattr(tl, op)(x, (8,), mask=tl.arange(0, 8) < 4, other=1.5)

        assert f"{op}: 1.5 does not fit i32" in message_of(kernel, np.zeros(8, np.int32))

    def test_rows_that_begin_within_a_row_and_end_in_the_next(self):
        x = np.arange(32, dtype=np.float32).reshape(4, 8)  # rows of 32 bytes

        def across(x, tl):
            tl.load(x + 16, (2, 8), rows=[0, 1])

        def within(x, tl):
            assert (tl.load(x + 32 + 16, (2, 4), rows=[0, 2]).numpy() == [[12, 13, 14, 15], [28, 29, 30, 31]]).all()

        assert "rows of 32 bytes from byte 16 of a row on, 'x' has rows of 32" in message_of(across, x)
        run_kernel(within, x)

    def test_rows_of_no_numbers_and_of_several_lengths(self):
        def none(x, tl):
            assert tl.load(x, rows=[]).shape == (0, 8)

        def ragged(x, tl):
            tl.load(x, rows=[[1], [2, 3]])

        x = np.zeros((4, 8), np.float32)
        run_kernel(none, x)
        assert "give whole numbers along one axis" in message_of(ragged, x)

    def test_blocks_that_no_tcm_holds_are_refused_before_their_lanes_are_listed(self):
        def masked(x, tl):
            tl.load(x, (1 << 20, 1 << 20), mask=False)

        def far(x, tl):
            tl.load(x, (2, 2), strides=(1 << 62, 1))

        x = np.zeros(8, np.float32)
        assert "TCM overflow: 4398046511104 bytes" in message_of(masked, x)
        assert "reach past any memory" in message_of(far, x)

    @pytest.mark.parametrize("use", [lambda h: h + 1, lambda h: 2 * h, lambda h: h < 3, lambda h: h.numpy()])
    def test_a_handle_that_was_not_waited_for(self, use):
        def kernel(x, tl):
            use(tl.load_async(x))

        assert "take what tl.wait(h) returns" in message_of(kernel, np.zeros(8, np.float32))

    def test_an_argument_that_a_call_does_not_have(self):
        def kernel(x, tl):
            tl.load(x, msk=True)

        message = message_of(kernel, np.zeros(8, np.float32))
        assert message == "tl.load() got an unexpected keyword argument 'msk'\nhelp(tl.load) lists its arguments"
