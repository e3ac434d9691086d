"""Views of tensors: they share memory, launches and collectives take them or say what to do instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from tests.unit.runtime_api.test_tensor import COLUMNS, ROWS, counting, machine

from kernbench.common.errors import LaunchError, NotModelledError, TensorError, UsageError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.layout import Layout
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.engine import GraphEngine

EVERY_PLACEMENT = [None, ROWS, COLUMNS, DPPolicy(num_cubes=2, num_pes=2)]


@pytest.fixture
def torch() -> Iterator[RuntimeContext]:
    with RuntimeContext(GraphEngine(machine())) as made:
        yield made


@pytest.mark.parametrize("dp", EVERY_PLACEMENT)
def test_what_is_written_to_a_view_is_in_its_tensor(torch: RuntimeContext, dp: DPPolicy | None) -> None:
    x, wanted = torch.from_numpy(counting(4, 6), dp=dp), counting(4, 6)
    x[2:4].zero_()
    wanted[2:4] = 0
    x.data[0] = 7
    wanted[0] = 7
    x.t()[5] += 1
    wanted.T[5] += 1
    x.view(2, 12)[1, 3:5].fill_(-2)
    wanted.reshape(2, 12)[1, 3:5] = -2
    left, right = x.chunk(2, dim=1)
    right.mul_(2)
    wanted[:, 3:] *= 2
    left[1] = right[0]
    wanted[1, :3] = wanted[0, 3:]
    assert (x.numpy() == wanted).all()
    assert (left.numpy() == wanted[:, :3]).all()


def test_numpy_is_a_private_copy(torch: RuntimeContext) -> None:
    x = torch.zeros(4)
    x[1:3].numpy()[:] = 9
    x.numpy()[:] = 9
    assert x.tolist() == [0, 0, 0, 0]
    assert "shares no memory" in (Tensor.numpy.__doc__ or "")


def add_rows(part, whole, n, tl) -> None:
    """Every row of `whole` gets the row before it added, from the last one on; `part` is one of its rows."""
    for row in range(n - 1, 0, -1):
        at = row * 4 * whole.itemsize
        tl.store(whole + at, tl.load(whole + at, (4,)) + tl.load(whole + at - 4 * whole.itemsize, (4,)))
    tl.store(part, tl.load(part, (4,)) * 10)


@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_launch_takes_a_tensor_and_a_view_of_it(torch: RuntimeContext, row: int) -> None:
    """An address counted from one of them is checked against that one, wherever the view lies."""
    x, wanted = torch.from_numpy(counting(3, 4)), counting(3, 4)
    torch.launch("add_rows", add_rows, x[row], x, 3)
    wanted[1:] += counting(3, 4)[:2]
    wanted[row] *= 10
    assert (x.numpy() == wanted).all()


def test_a_kernel_that_leaves_a_view_is_refused_also_inside_its_tensor(torch: RuntimeContext) -> None:
    def leaves(part, whole, tl) -> None:
        tl.load(part, (5,))

    x = torch.from_numpy(counting(3, 4))
    with pytest.raises(LaunchError, match="run past 'part'"):
        torch.launch("leaves", leaves, x[0], x)


def double(x, tl) -> None:
    tl.store(x.local, tl.load(x) * 2)


@pytest.mark.parametrize("dp", [None, ROWS, DPPolicy(num_cubes=1, num_pes=2)])
def test_a_launch_takes_a_contiguous_view_where_it_lies(torch: RuntimeContext, dp: DPPolicy | None) -> None:
    x = torch.from_numpy(counting(8, 4), dp=dp)
    view = x[2:6]
    torch.launch(double, view)
    wanted = counting(8, 4)
    wanted[2:6] *= 2
    assert (x.numpy() == wanted).all()
    assert view.data_ptr() == x.data_ptr() + 2 * 4 * 2
    # Of 8 rows on 4 PEs, rows 2 to 5 are those of PEs 1 and 2.
    assert [part.pe for part in view.placement] == {None: [0], ROWS: [1, 2]}.get(dp, [0, 1])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda torch: torch.zeros(4, 6).t(), r"strides \[1, 6\]"),
        (lambda torch: torch.zeros(4, 6)[:, 1:3], "do not follow one another"),
        (lambda torch: torch.zeros(4, 6, dp=COLUMNS)[1:3], "columns are split over PEs"),
        (lambda torch: torch.zeros(6, 4, dp=ROWS).view(3, 8), "lie on two PEs"),
    ],
)
def test_a_view_that_a_launch_cannot_take_is_refused_with_what_to_do(torch: RuntimeContext, make, why: str) -> None:
    view = make(torch)
    with pytest.raises(TensorError, match=why) as refused:
        torch.launch(double, view)
    assert "contiguous()" in str(refused.value.hint)
    copy = view.contiguous()
    torch.launch(double, copy)
    assert copy.shape == view.shape
    assert [launch.name for launch in torch.launches] == ["contiguous", "double"]


def test_contiguous_of_a_contiguous_tensor_is_that_tensor(torch: RuntimeContext) -> None:
    x = torch.zeros(4, 6, dp=ROWS)
    assert x.contiguous() is x
    assert x[1:3].contiguous().storage is x.storage
    assert not torch.launches


def test_memory_lives_as_long_as_a_view_of_it(torch: RuntimeContext) -> None:
    view = torch.full((64,), 3)[8:16]
    assert torch.used_bytes(0, 0, 0) == 128
    other = torch.zeros(64)
    assert view.tolist() == [3] * 8
    del view, other
    torch.empty(1)
    assert torch.used_bytes(0, 0, 0) < 128


def test_a_view_says_that_it_is_one(torch: RuntimeContext) -> None:
    text = repr(torch.from_numpy(counting(2, 4), name="a")[:, 1])
    assert text == "tensor 'a' f16[2] on sip 0, cube 0, pe 0, 4 B, a view from element 1 on with strides [4]\n[1. 5.]"


def test_tensors_without_axes_and_without_elements(torch: RuntimeContext) -> None:
    one, none = torch.tensor(2.5), torch.zeros(0, 3)
    assert (one.shape, one.item(), one.view(1).shape) == ((), 2.5, (1,))
    assert (none.numel(), none.tolist(), none.sum().item(), (none + 1).shape) == (0, [], 0, (0, 3))
    assert torch.cat([none, torch.ones(2, 3)]).shape == (2, 3)
    one += 1
    assert f"{one:.2f}" == "3.50"


def test_sizes_and_strides_are_pytorchs(torch: RuntimeContext) -> None:
    x = torch.zeros(4, 6, dtype=torch.float32)
    assert (x.size(), x.size(-1), x.dim(), x.element_size(), x.stride(), x.t().stride(1)) == (
        (4, 6),
        6,
        2,
        4,
        (6, 1),
        6,
    )
    assert x.t().is_contiguous() is False
    assert [part.shape for part in x.split(4, dim=1)] == [(4, 4), (4, 2)]
    assert [part.shape for part in x.chunk(4, dim=1)] == [(4, 2)] * 3
    assert x.view(2, -1).shape == (2, 12)
    with pytest.raises(RuntimeError, match=r"use x\.reshape"):
        x.t().view(24)
    assert x.t().reshape(24).shape == (24,)


def test_any_view_that_strides_express_is_numpys() -> None:
    # Axes 0 and 1 of shape (2, 3, 4) with strides (12, 4, 1) act as one of 6 with stride 4: they merge, and split.
    whole = Layout.dense((2, 3, 4))
    assert whole.narrowed(2, 0, 2).viewed((6, 2)) == Layout((6, 2), (4, 1))
    assert whole.narrowed(2, 0, 2).viewed((3, 2, 2)) == Layout((3, 2, 2), (8, 4, 1))
    assert whole.narrowed(2, 0, 2).viewed((12,)) is None
    assert whole.permuted((1, 0, 2)).viewed((6, 4)) is None
    assert whole.indexed((1, slice(None, None, 2), None, 3)) == Layout((2, 1), (8, 4), 15)


@pytest.mark.parametrize("index", [9, (0, 0, 0), -5])
def test_an_index_that_is_not_there_is_an_index_error(torch: RuntimeContext, index: object) -> None:
    with pytest.raises(IndexError) as refused:
        torch.zeros(4, 4)[index]  # type: ignore[index]  # the mistake
    assert isinstance(refused.value, UsageError)


def test_devices_and_dtypes_go_by_pytorchs_names_and_ours(torch: RuntimeContext) -> None:
    spellings = ("cuda", "cuda:0", "sip:0", 0, torch.device("cuda", 0))
    assert [torch.ones(2, device=each).device for each in spellings] == ["sip:0"] * 5
    assert [torch.ones(2, dtype=d).dtype for d in (torch.float32, "f32", np.float32)] == ["f32"] * 3
    assert torch.ones(2).dtype is torch.float16
    torch.set_default_dtype(torch.float32)
    assert torch.ones(2).dtype is torch.tensor([1.0]).dtype is torch.float32
    assert torch.ones(2).to("cpu").numpy().tolist() == [1, 1]
    with pytest.raises(UsageError, match="device 'cpu'"):
        torch.ones(2, device="cpu")
    with pytest.raises(UsageError, match="no device"):
        torch.ones(2, device="cuda:7")


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda torch: torch.ones(2, requires_grad=True), "there is no autograd"),
        (lambda torch: torch.ones(2).backward(), "there is no autograd"),
        (lambda torch: torch.ones(2).grad, "there is no autograd"),
        (lambda torch: torch.ones(2).maen(), "did you mean 'mean'"),
        (lambda torch: torch.sofmax, "did you mean 'softmax'"),
        (lambda torch: torch.nn.Linear, "kernbench.tp"),
        (lambda torch: torch.cuda.Stream(), "torch.now_ns"),
        (lambda torch: torch.nn.functional.max_pool2d, "there are: "),
        (lambda torch: torch.distributed.allreduce, "did you mean 'all_reduce'"),
        (lambda torch: torch._C, "torch has no '_C'"),
        (lambda torch: torch.nonzero, "depends on numbers"),
        (lambda torch: torch.ones(4).view(torch.int16), r"x\.to\(dtype\) converts"),
    ],
)
def test_a_name_that_is_not_there_says_what_to_use(torch: RuntimeContext, ask, says: str) -> None:
    with pytest.raises(NotModelledError, match=says):
        ask(torch)


@pytest.mark.parametrize(
    ("name", "code", "wanted"),
    [
        ("prod", "x.log().sum().exp()", np.prod),
        ("cumprod", "x.log().cumsum(dim).exp()", lambda x: np.cumprod(x, 1)),
        ("median", "x.sort(dim).values", lambda x: np.sort(x, 1)),
        ("masked_select", "x[mask]", lambda x: x[x > 2]),
        ("lerp_", "x.copy_(x.lerp(end, weight))", lambda x: x + 0.25 * (1 - x)),
        ("trace", "x.diagonal().sum()", np.trace),
        ("inner", "(x * y).sum(-1)", lambda x: (x * x).sum(-1)),
        ("count_nonzero", "(x != 0).sum()", np.count_nonzero),
        ("nan_to_num", "x.masked_fill(x.isnan(), 0)", np.nan_to_num),
        ("diff", "x[1:] - x[:-1]", lambda x: np.diff(x, axis=0)),
        ("trunc", "x.sign() * x.abs().floor()", np.trunc),
        ("expm1", "x.exp() - 1", np.expm1),
        ("log1p", "(1 + x).log()", np.log1p),
        ("log10", "x.log() / 2.302585", np.log10),
        ("tan", "x.sin() / x.cos()", np.tan),
        ("nansum", "x.masked_fill(x.isnan(), 0).sum()", np.nansum),
        ("new_tensor", "torch.tensor(data, dtype=x.dtype, device=x.device)", lambda x: [1, 2]),
        ("diag", "torch.eye(len(x)) * x", lambda x: np.eye(3) * x),
    ],
)
def test_what_an_error_says_to_use_instead_gives_the_numbers(
    torch: RuntimeContext, name: str, code: str, wanted: Callable[[np.ndarray], object]
) -> None:
    numbers = counting(3, 3).astype(np.float32) / 4 + 0.5
    x = torch.from_numpy(numbers, dtype="f32")
    names = {"x": x, "y": x, "dim": 1, "mask": x > 2, "end": 1.0, "weight": 0.25, "torch": torch, "data": [1, 2]}
    with pytest.raises(NotModelledError) as caught:
        getattr(x, name)
    assert code in str(caught.value.hint)
    np.testing.assert_allclose(eval(code, names).numpy(), wanted(numbers), rtol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x.tensor_split(0),
        lambda x: x.split(2.0),
        lambda x: x.expand(-2),
        lambda x: x.narrow(0, 1.5, 2),
        lambda x: x.gather(0, x.new_zeros(1, 2, dtype="i64")),
        lambda x: x.view(2, 2).repeat(2),
        lambda x: x.repeat(-1),
        lambda x: x.repeat(1.5),
        lambda x: x.repeat_interleave(-1),
        lambda x: x.roll((1, 2), 0),
        lambda x: x.tril(),
        lambda x: x.outer(x.view(2, 2)),
    ],
)
def test_arguments_that_make_no_view_are_refused(torch: RuntimeContext, wrong: Callable[[Tensor], object]) -> None:
    with pytest.raises(TensorError):
        wrong(torch.zeros(4, dtype="f32"))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("softplus", lambda x: np.log1p(np.exp(x))),
        ("leaky_relu", lambda x: np.where(x > 0, x, 0.01 * x)),
        ("normalize", lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)),
        ("cosine_similarity", lambda x: np.ones(3)),
    ],
)
def test_what_errors_of_functional_say_to_use_gives_the_numbers(
    torch: RuntimeContext, name: str, wanted: Callable[[np.ndarray], object]
) -> None:
    numbers = counting(3, 3).astype(np.float32) / 4 - 0.5
    x = torch.from_numpy(numbers, dtype="f32")
    with pytest.raises(NotModelledError) as caught:
        getattr(torch.nn.functional, name)
    code = str(caught.value.hint).removeprefix("use ")
    np.testing.assert_allclose(eval(code, {"x": x, "y": x, "torch": torch}).numpy(), wanted(numbers), rtol=1e-5)


def test_numpys_functions_take_tensors(torch: RuntimeContext) -> None:
    x = torch.from_numpy(counting(4, 6), dtype="f32")
    assert (np.sum(x), np.max(x), np.mean(x, axis=1).tolist()) == (276, 23, [2.5, 8.5, 14.5, 20.5])
    assert [launch.name for launch in torch.launches[:3]] == ["sum", "amax", "mean"]
    with pytest.raises(UsageError, match="sum got both dim= and axis="):
        x.sum(dim=0, axis=0)  # type: ignore[call-arg]  # numpy's name of dim


def test_the_host_is_a_device_to_copy_to(torch: RuntimeContext) -> None:
    x = torch.ones(2, dtype="f32")
    for found in (x.to(torch.device("cpu")), x.to(device=torch.device("cpu")), x.type("cpu")):
        assert found.numpy().tolist() == [1, 1]
    assert torch.device("cpu").type == torch.device("cpu") == "cpu"
    with pytest.raises(UsageError, match="not modelled"):
        torch.ones(2, device=torch.device("cpu"))
