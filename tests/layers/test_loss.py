"""The CPU variant of `layers/loss`, against the definition in float64."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kernels_hub import BundledLayerRepository
from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.layers.checked_operators import opcheck
from tests.layers.loss_cases import (
    DTYPES,
    FORMS,
    REDUCTIONS,
    SHAPES,
    check_cross_entropy,
    check_linear,
    exact_cross_entropy,
    make,
    make_linear,
)
from tests.warm_process import run_script


@pytest.fixture(scope="module")
def package() -> ModuleType:
    return import_kernel(source_variant(bundled_folder() / "loss", "cpu"))


# -- cross-entropy -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", FORMS)
def test_cross_entropy(package: ModuleType, dtype: torch.dtype, shape: tuple[int, int], form: str) -> None:
    for reduction in REDUCTIONS:
        logits, target = make(shape, dtype, ignored=FORMS[form].get("ignore_index", -100))
        check_cross_entropy(package, logits, target, reduction, FORMS[form])


def test_the_comparison_sees_a_wrong_gradient(package: ModuleType) -> None:
    class Wrong:
        @staticmethod
        def cross_entropy(logits: Tensor, target: Tensor, **options: Any) -> Tensor:
            right = package.cross_entropy(logits, target, **options)
            return right.detach() + 1.001 * (right - right.detach())

    logits, target = make((16, 129), torch.float32)
    with pytest.raises(AssertionError, match="relative error"):
        check_cross_entropy(Wrong, logits, target, "mean", {})  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 9),
    width=st.integers(1, 70),
    scale=st.sampled_from([0.0, 1.0, 30.0, 1e4]),
    seed=st.integers(0, 2**16),
    smoothing=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_random_rows(rows: int, width: int, scale: float, seed: int, smoothing: float) -> None:
    package = import_kernel(source_variant(bundled_folder() / "loss", "cpu"))
    generator = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(rows, width, generator=generator)).requires_grad_()
    target = torch.randint(0, width, (rows,), generator=generator)
    exact = logits.detach().double().requires_grad_()
    found = package.cross_entropy(logits, target, label_smoothing=smoothing)
    expected = F.cross_entropy(exact, target, label_smoothing=smoothing)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5 + 2e-7 * scale)
    found.backward()
    expected.backward()
    assert logits.grad is not None and exact.grad is not None
    torch.testing.assert_close(logits.grad, exact.grad.float(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_are_torchs(package: ModuleType, dtype: torch.dtype) -> None:
    infinity, nan = float("inf"), float("nan")
    rows = [
        [1.0, 2.0, -infinity],
        [-infinity, 0.0, -infinity],
        [nan, 1.0, 2.0],
        [infinity, 1.0, 2.0],
        [-infinity, -infinity, -infinity],
        [1e4, -1e4, 0.0],
        [nan, nan, nan],
    ]
    target = torch.tensor([2, 1, 1, 0, 1, 1, -100])
    for smoothing in (0.0, 0.1):
        ours = torch.tensor(rows, dtype=dtype, requires_grad=True)
        exact = ours.detach().double()
        found = package.cross_entropy(ours, target, reduction="none", label_smoothing=smoothing)
        expected = F.cross_entropy(exact, target, reduction="none", label_smoothing=smoothing)
        torch.testing.assert_close(found, expected.float(), rtol=1e-3, atol=1e-5, equal_nan=True)
        found.sum().backward()
        assert ours.grad is not None
        assert torch.equal(ours.grad[6], torch.zeros(3, dtype=dtype))
        assert torch.isfinite(ours.grad[1]).all()


def test_every_row_ignored_is_torchs_nan(package: ModuleType) -> None:
    logits, target = torch.randn(3, 4), torch.full((3,), -100)
    assert package.cross_entropy(logits, target).isnan() and F.cross_entropy(logits, target).isnan()
    assert package.cross_entropy(logits, target, reduction="sum") == 0


def test_rows_of_any_layout_and_rank(package: ModuleType) -> None:
    logits, target = make((24, 30), torch.float32)
    expected = F.cross_entropy(logits, target)
    strided = torch.stack([logits, -logits], 2)[..., 0]
    torch.testing.assert_close(package.cross_entropy(strided, target), expected)
    torch.testing.assert_close(package.cross_entropy(logits.t().contiguous().t(), target), expected)
    deep = package.cross_entropy(logits.view(2, 3, 4, 30), target.view(2, 3, 4), reduction="none")
    assert deep.shape == (2, 3, 4)
    torch.testing.assert_close(deep.flatten(), F.cross_entropy(logits, target, reduction="none"))
    assert package.cross_entropy(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64), reduction="sum") == 0


@pytest.mark.parametrize("form", FORMS)
def test_gradcheck_and_second_order(package: ModuleType, form: str) -> None:
    logits, target = make((3, 5), torch.float64, ignored=FORMS[form].get("ignore_index", -100))
    logits.requires_grad_()

    def loss(x: Tensor) -> Tensor:
        return package.cross_entropy(x, target, **FORMS[form])  # type: ignore[no-any-return]

    assert torch.autograd.gradcheck(loss, (logits,))
    assert torch.autograd.gradgradcheck(loss, (logits,))


def test_forward_mode(package: ModuleType) -> None:
    logits, target = make((4, 6), torch.float32)
    tangent = torch.randn_like(logits)
    tangents = []
    for function in (package.cross_entropy, exact_cross_entropy):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(logits, tangent)
            tangents.append(torch.autograd.forward_ad.unpack_dual(function(dual, target)).tangent)
    torch.testing.assert_close(*tangents)


# -- linear cross-entropy ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("form", ["plain", "everything"])
@pytest.mark.parametrize("chunk_rows", [None, 8, 1])
def test_linear_cross_entropy(
    package: ModuleType, dtype: torch.dtype, reduction: str, form: str, chunk_rows: int | None
) -> None:
    operands = make_linear(dtype, ignored=FORMS[form].get("ignore_index", -100))
    check_linear(package.linear_cross_entropy, operands, reduction, FORMS[form], chunk_rows=chunk_rows)


def test_without_bias_and_with_more_dims(package: ModuleType) -> None:
    operands = make_linear(torch.float32, rows=24)
    check_linear(package.linear_cross_entropy, operands, "mean", {}, bias=False, chunk_rows=5)
    hidden, weight, _, target = operands
    for reduction in REDUCTIONS:
        deep = package.linear_cross_entropy(
            hidden.view(2, 3, 4, -1), weight, target.view(2, 3, 4), reduction=reduction
        )
        flat = package.linear_cross_entropy(hidden, weight, target, reduction=reduction)
        torch.testing.assert_close(deep.flatten(), flat.flatten())


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_only_the_gradients_that_are_wanted(
    package: ModuleType, wanted: tuple[int, ...], reduction: str
) -> None:
    *tensors, target = make_linear(torch.float32)
    results = []
    for function in (package.linear_cross_entropy, None):
        operands = [x.detach().clone().requires_grad_(i in wanted) for i, x in enumerate(tensors)]
        if function is not None:
            loss = function(operands[0], operands[1], target, operands[2], reduction=reduction, chunk_rows=8)
        else:
            loss = exact_cross_entropy(F.linear(*operands), target, reduction=reduction)
        loss.sum().backward()
        results.append([x.grad for x in operands])
    for i, (ours, expected) in enumerate(zip(*results, strict=True)):
        assert (ours is None) == (expected is None) == (i not in wanted)
        if ours is not None:
            torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_linear_gradcheck_and_second_order(package: ModuleType, reduction: str) -> None:
    *tensors, target = make_linear(torch.float64, rows=3, width=2, classes=4)

    def loss(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return package.linear_cross_entropy(  # type: ignore[no-any-return]
            hidden, weight, target, bias, reduction=reduction, softcap=4.0, z_loss=0.1, chunk_rows=2
        )

    operands = tuple(x.requires_grad_() for x in tensors)
    assert torch.autograd.gradcheck(loss, operands)
    assert torch.autograd.gradgradcheck(loss, operands)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradients_where_every_row_is_ignored(package: ModuleType, reduction: str, smoothing: float) -> None:
    """The loss is NaN, of a batch without labels or of a share of none, and the gradients 0, as torch's: training goes on."""
    target = torch.full((6,), -100)
    found = []
    for loss in (
        lambda x, w: F.cross_entropy(x @ w.t(), target, reduction=reduction, label_smoothing=smoothing),
        lambda x, w: package.linear_cross_entropy(
            x, w, target, reduction=reduction, label_smoothing=smoothing
        ),
    ):
        x, w = torch.randn(6, 8, requires_grad=True), torch.randn(10, 8, requires_grad=True)
        value = loss(x, w).sum()
        (value if reduction == "mean" else value / 0).backward()
        found.append((value.detach(), x.grad, w.grad))
    torch.testing.assert_close(found[1], found[0], equal_nan=True)
    assert not any(one.any() for one in found[1][1:])


def test_backward_twice_gives_the_same(package: ModuleType) -> None:
    *tensors, target = make_linear(torch.float32)
    operands = [x.requires_grad_() for x in tensors]
    loss = package.linear_cross_entropy(operands[0], operands[1], target, operands[2])
    first = torch.autograd.grad(3 * loss, operands, retain_graph=True)
    second = torch.autograd.grad(3 * loss, operands)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_float16_gradients_do_not_underflow(package: ModuleType) -> None:
    """1 / N of the mean is applied to the sum's gradients, not to what float16 cannot hold."""
    hidden, weight, _, _ = make_linear(torch.float16, rows=64, classes=2000)
    target = torch.full((64,), -100)
    target[0] = 1
    target[1:] = torch.randint(0, 2000, (63,))
    ours = [x.clone().requires_grad_() for x in (hidden, weight)]
    exact = [x.double().requires_grad_() for x in (hidden, weight)]
    (1e-3 * package.linear_cross_entropy(*ours, target)).backward()
    (1e-3 * F.cross_entropy(F.linear(*exact), target)).backward()
    for mine, reference in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine.grad, reference.grad.half(), rtol=4e-3, atol=2e-7)


def test_autocast_is_a_linear_layers(package: ModuleType) -> None:
    *tensors, target = make_linear(torch.float32)
    results = []
    for function in (package.linear_cross_entropy, None):
        operands = [x.detach().clone().requires_grad_() for x in tensors]
        with torch.autocast("cpu", torch.bfloat16):
            if function is not None:
                loss = function(operands[0], operands[1], target, operands[2])
            else:
                loss = F.cross_entropy(F.linear(*operands).float(), target)
        loss.backward()
        results.append([loss, *(x.grad for x in operands)])
    for ours, expected in zip(*results, strict=True):
        assert ours.dtype == expected.dtype == torch.float32
        torch.testing.assert_close(ours, expected, rtol=2e-2, atol=2e-3)


class Subclass(Tensor):
    """Stands for DTensor and quantised weights: only torch's own functions know what it is."""


def test_tensor_subclasses_take_torchs_own_functions(package: ModuleType) -> None:
    hidden, weight, bias, target = make_linear(torch.float32)
    expected = F.cross_entropy(F.linear(hidden, weight, bias), target)
    found = package.linear_cross_entropy(hidden, weight.as_subclass(Subclass), target, bias)
    assert type(found) is Subclass
    torch.testing.assert_close(found.as_subclass(Tensor), expected)


def peak_bytes(function: Any) -> int:
    """The most bytes of tensors that live at once beyond those that lived before, by PyTorch's allocator."""
    activity = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity], profile_memory=True) as profile:
        function()
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    sizes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    now = most = 0
    for _, size in sizes:
        now += size
        most = max(most, now)
    return most


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_peak_memory(package: ModuleType, dtype: torch.dtype) -> None:
    """A step holds the gradients, the weight's once more in float32, and a chunk of logits: not N x V."""
    rows, width, classes, chunk = 2048, 16, 1000, 64
    hidden, weight, _, target = make_linear(dtype, rows=rows, width=width, classes=classes)
    hidden.requires_grad_()
    weight.requires_grad_()

    def step(loss: Any) -> None:
        hidden.grad = weight.grad = None
        loss().backward()

    def fused() -> Tensor:
        return package.linear_cross_entropy(hidden, weight, target, chunk_rows=chunk)  # type: ignore[no-any-return]

    def eager() -> Tensor:
        return F.cross_entropy(F.linear(hidden, weight).float(), target)

    logits = rows * classes * dtype.itemsize
    gradients = 2 * (hidden.nbytes + weight.nbytes)
    allowed = gradients + 3 * weight.numel() * 4 + chunk * classes * dtype.itemsize + 16 * rows
    assert allowed < 0.2 * logits
    # What a garbage collection or a thread of another test does meanwhile only adds: seen once in many whole runs.
    assert min(peak_bytes(lambda: step(fused)) for _ in range(3)) <= allowed
    assert peak_bytes(lambda: step(eager)) > 2 * logits  # the measure sees what it should


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("wrong", [-1, 7, 2**40])
def test_a_class_out_of_range(package: ModuleType, dtype: torch.dtype, wrong: int) -> None:
    logits, target = torch.randn(3, 7, dtype=dtype), torch.tensor([0, wrong, 1])
    with pytest.raises(IndexError, match=rf"Target {wrong} is out of bounds: expected \[0, 7\)"):
        package.cross_entropy(logits, target)
    weight = torch.randn(7, 7, dtype=dtype, requires_grad=True)
    with pytest.raises(IndexError, match="out of bounds"):
        package.linear_cross_entropy(logits, weight, target)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reduction": "average"}, "unknown reduction 'average'; expected one of mean, sum, none"),
        ({"label_smoothing": 1.5}, r"expected a label_smoothing in \[0, 1\], got 1.5"),
        ({"softcap": -1.0}, "expected a softcap above 0, or None, got -1.0"),
        ({"chunk_rows": 0}, "expected chunk_rows of at least 1, or None, got 0"),
        ({"target": torch.zeros(3)}, r"expected an int64 class for each row, target \(37,\)"),
        ({"weight": torch.zeros(5, 3)}, r"expected weight \(V, 24\) for hidden \(37, 24\), got \(5, 3\)"),
        (
            {"weight": torch.zeros(101, 24).bfloat16()},
            "expected operands of one dtype, got hidden torch.float32",
        ),
        ({"bias": torch.zeros(7)}, r"expected bias \(101,\), got \(7,\)"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(
    package: ModuleType, change: dict[str, Any], message: str
) -> None:
    hidden, weight, bias, target = make_linear(torch.float32)
    arguments = {"hidden": hidden, "weight": weight, "target": target, "bias": bias, **change}
    with pytest.raises(ValueError, match=message):
        package.linear_cross_entropy(**arguments)


# -- torch.compile, operators --------------------------------------------------------------------


def test_compiles_whole(package: ModuleType) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(package.cross_entropy, fullgraph=True, backend="aot_eager")
    logits, target = make((16, 129), torch.float32)
    check_cross_entropy(type("Compiled", (), {"cross_entropy": compiled}), logits, target, "mean", {})  # type: ignore[arg-type]
    linear = torch.compile(package.linear_cross_entropy, fullgraph=True, backend="aot_eager")
    check_linear(linear, make_linear(torch.bfloat16), "mean", {}, chunk_rows=8)


def test_operators_are_well_formed(package: ModuleType) -> None:
    operators = sys.modules[f"{package.__name__}.operators"]
    linear = sys.modules[f"{package.__name__}.linear_operators"]
    logits, target = make((5, 7), torch.float32)
    form = (-100, 0.1, 1e-3, 0.0)
    for operator in (operators.cross_entropy_rows, operators.cross_entropy_rows_inference):
        opcheck(operator, (logits, target, *form))
    *tensors, target = make_linear(torch.bfloat16, rows=9)
    operands = [x.requires_grad_() for x in tensors]
    opcheck(linear.linear_cross_entropy_rows, (*operands, target, *form, 4))
    opcheck(linear.linear_cross_entropy_total, (*operands, target, *form, 4, True, True, True))


# -- the layer -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("autocast", [False, True])
def test_layer_returns_what_torchs_returns(dtype: torch.dtype, reduction: str, autocast: bool) -> None:
    layer = BundledLayerRepository("loss", layer_name="CrossEntropyLoss").load("cpu")
    module = nn.CrossEntropyLoss(reduction=reduction, label_smoothing=0.1, ignore_index=1)
    logits, target = make((16, 129), dtype)
    target[target == -100] = 1
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for x, t in ((logits, target), (logits[0], target[0]), (logits[1], target[1])):
            found, expected = layer.forward(module, x, t), module(x, t)
            assert found.dtype == expected.dtype
            bound = 2e-2 if found.dtype == torch.bfloat16 else 3e-3 if found.dtype == torch.float16 else 1e-5
            torch.testing.assert_close(found, expected, rtol=bound, atol=bound, equal_nan=True)


def test_layer_leaves_to_torch_what_it_does_not_compute() -> None:
    layer = BundledLayerRepository("loss", layer_name="CrossEntropyLoss").load("cpu")
    logits = torch.randn(4, 5)
    cases = [
        (nn.CrossEntropyLoss(), logits, torch.softmax(torch.randn(4, 5), 1)),
        (nn.CrossEntropyLoss(weight=torch.rand(5)), logits, torch.tensor([0, 1, 2, 3])),
        (nn.CrossEntropyLoss(), torch.randn(2, 5, 3), torch.randint(0, 5, (2, 3))),
    ]
    for module, x, target in cases:
        assert torch.equal(layer.forward(module, x, target), module(x, target))
    with pytest.raises((RuntimeError, IndexError)):
        layer.forward(nn.CrossEntropyLoss(), logits, torch.tensor([0, 1, 2, 9]))


def test_without_a_compiler_the_reference_runs() -> None:
    code = (
        "import torch; from kernels_hub.repository.bundled import bundled_folder, source_variant\n"
        "from kernels_hub.repository.load import import_kernel\n"
        "p = import_kernel(source_variant(bundled_folder() / 'loss', 'cpu'))\n"
        "x = torch.randn(4, 9).requires_grad_(); t = torch.tensor([0, 8, -100, 3])\n"
        "loss = p.linear_cross_entropy(x, torch.eye(9), t)\n"
        "expected = torch.nn.functional.cross_entropy(x, t)\n"
        "torch.testing.assert_close(loss, expected)\n"
        "torch.testing.assert_close(*(torch.autograd.grad(y, x)[0] for y in (loss, expected)))\n"
        "print('same')"
    )
    environment = {**os.environ, "KERNELS_HUB_CXX": "none"}
    done = run_script(code, env=environment)
    assert done.stdout == "same\n", done.stderr
    assert "native CPU code of cpu is off" in done.stderr or "is off" in done.stderr
