"""The CPU variant of `layers/embedding`, against PyTorch's in float64."""

from __future__ import annotations

import sys
from types import MethodType, ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.layers.checked_operators import opcheck
from tests.layers.embedding_cases import CASES, DTYPES, Case, check, make


@pytest.fixture(scope="module")
def package() -> ModuleType:
    return import_kernel(source_variant(bundled_folder() / "embedding", "cpu"))


@pytest.fixture(params=["native", "reference"])
def path(request: pytest.FixtureRequest, package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> str:
    """The C++, and what runs where it cannot be built."""
    if request.param == "reference":
        monkeypatch.setattr(sys.modules[f"{package.__name__}.kernels"], "_library", lambda: None)
    return str(request.param)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_forward_and_backward(package: ModuleType, path: str, case: Case, dtype: torch.dtype) -> None:
    check(package.embedding, case, *make(case, dtype))


def test_the_comparison_rejects_a_wrong_answer(package: ModuleType) -> None:
    case = CASES[0]
    for wrong in (
        lambda indices, weight, *rest: package.embedding(indices.flip(0), weight, *rest),
        lambda indices, weight, *rest: package.embedding(
            indices, 0.5 * weight + 0.5 * weight.detach(), *rest
        ),
    ):
        with pytest.raises(AssertionError):
            check(wrong, case, *make(case, torch.float32))


def test_larger_and_whatever_the_threads(package: ModuleType) -> None:
    case = Case((8, 300), 2000, 96, padding=7)
    indices, weight = make(case, torch.float32)
    check(package.embedding, case, indices, weight)
    weight.requires_grad_()
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(torch.autograd.grad(package.embedding(indices, weight).square().sum(), weight)[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


@pytest.mark.parametrize("index", [-1, 7])
@pytest.mark.parametrize("grad", [False, True])
def test_an_index_outside_of_the_table(package: ModuleType, path: str, index: int, grad: bool) -> None:
    weight = torch.randn(7, 4, requires_grad=grad)
    for function in (package.embedding, F.embedding):
        with pytest.raises(IndexError, match="index out of range in self"):
            function(torch.tensor([0, index]), weight)


def test_bad_input(package: ModuleType) -> None:
    weight = torch.randn(7, 4)
    with pytest.raises(ValueError, match="indices of int32 or int64.*got torch.float32 and a table .7, 4."):
        package.embedding(torch.zeros(2), weight)
    with pytest.raises(ValueError, match="padding_idx 7 is outside of a table of 7 rows"):
        package.embedding(torch.zeros(2, dtype=torch.long), weight, 7)


def test_gradcheck_and_second_order(package: ModuleType) -> None:
    indices, weight = make(Case((3, 2), 4, 3), torch.float64)
    for padding in (None, 2):
        inputs = (indices, weight.requires_grad_(), padding, 1.5)
        function = package.embedding
        if padding is None:  # with a padding_idx the gradient is not that of the forward, by definition
            assert torch.autograd.gradcheck(function, inputs)
        gradient = torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True)

        def backward(given: torch.Tensor, inputs=inputs, function=function) -> torch.Tensor:  # type: ignore[no-untyped-def]
            (found,) = torch.autograd.grad(function(*inputs), inputs[1], given, create_graph=True)
            return found

        assert torch.autograd.gradcheck(backward, gradient)


def test_layers_replace_their_modules(package: ModuleType) -> None:
    torch.manual_seed(0)
    indices = torch.randint(9, (2, 5))
    for settings in ({}, {"padding_idx": 3}, {"max_norm": 0.5}, {"scale_grad_by_freq": True}):
        module = nn.Embedding(9, 6, **settings)
        forward = MethodType(package.layers.Embedding.forward, module)
        expected = torch.autograd.grad(module(indices).square().sum(), module.weight)
        torch.testing.assert_close(forward(indices), module(indices))
        found = torch.autograd.grad(forward(indices).square().sum(), module.weight)
        torch.testing.assert_close(found, expected)


def test_gemmas_embedding(package: ModuleType) -> None:
    from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

    indices = torch.randint(9, (2, 5))
    for dtype in (torch.float32, torch.bfloat16):
        module = Gemma3TextScaledWordEmbedding(9, 6, padding_idx=0, embed_scale=48**0.5).to(dtype)
        forward = MethodType(package.layers.ScaledEmbedding.forward, module)
        assert torch.equal(forward(indices), module(indices))
        found, expected = (
            torch.autograd.grad(function(indices).float().square().sum(), module.weight)[0]
            for function in (forward, module)
        )
        torch.testing.assert_close(found, expected, rtol=2e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-5)


def test_compiles_whole(package: ModuleType) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(package.embedding, fullgraph=True, backend="aot_eager")
    for case in (CASES[0], CASES[2]):
        check(compiled, case, *make(case, torch.float32))


def test_operators_are_well_formed(package: ModuleType) -> None:
    operators = sys.modules[f"{package.__name__}.operators"]
    indices, weight = make(CASES[0], torch.float32)
    opcheck(operators._INFERENCE, (indices, weight, torch.tensor(2.0)))
    opcheck(operators._EMBEDDING, (indices, weight.requires_grad_(), 2, None))
