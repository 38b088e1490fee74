"""import_torch: names, memory, dims, state that changes, and failures that say everything at once."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import sympy
import torch
from torch import nn
from torch.export import Dim
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from kernels_hub.compiler import evaluate
from kernels_hub.compiler.errors import ImportFailure, ShapeError
from kernels_hub.compiler.importers.torch_export import import_torch, import_torch_program
from kernels_hub.compiler.importers.torch_program import array_of
from kernels_hub.compiler.importers.torch_sizes import Sizes
from kernels_hub.compiler.ir.graph import Graph
from tests.compiler.importers.torch_programs import (
    Function,
    assert_matches,
    check,
    check_function,
    round_trips,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export's own


def test_weights_are_views_of_the_module():
    module = nn.Linear(3, 2)
    graph = import_torch(module, (torch.randn(4, 3),))
    assert list(graph.parameters) == ["weight", "bias"]
    with torch.no_grad():
        module.weight.fill_(7.0)
    assert (graph.weight("weight") == 7).all()


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.bool, torch.int32]
)
def test_arrays_share_memory(dtype):
    tensor = torch.ones(2, 3).to(dtype)
    array = array_of(tensor.T)
    assert array.shape == (3, 2)
    assert array.dtype.name == str(dtype).removeprefix("torch.")
    assert array.__array_interface__["data"][0] == tensor.data_ptr()


@pytest.mark.parametrize("kind", ["encoder", "decoder", "both"])
def test_masks_of_transformers_are_not_looked_into(kind):
    """Whether a mask is causal is a hint, which PyTorch looks for in what the mask holds where nobody gives it."""
    torch.manual_seed(0)
    layers = {"batch_first": True, "dropout": 0.0}
    x, memory, length = torch.randn(2, 5, 8), torch.randn(2, 3, 8), 5
    causal, other = nn.Transformer.generate_square_subsequent_mask(length), torch.randn(length, length)
    model: nn.Module
    if kind == "encoder":
        layer = nn.TransformerEncoderLayer(8, 2, 16, **layers)
        model, args = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), (x,)
    elif kind == "decoder":
        decoder = nn.TransformerDecoderLayer(8, 2, 16, **layers)
        model, args = nn.TransformerDecoder(decoder, 2).eval(), (x, memory)
    else:
        model, args = nn.Transformer(8, 2, 1, 1, 16, **layers).eval(), (memory, x)
    name = "mask" if kind == "encoder" else "tgt_mask"
    detect = nn.modules.transformer._detect_is_causal_mask
    program = import_torch_program(model, args, {name: causal})
    assert nn.modules.transformer._detect_is_causal_mask is detect
    for mask in (causal, other):
        found = evaluate(program.graph, program.flatten(args, {name: mask}))
        wanted = (
            model(*args, **{name: mask}).detach().numpy()
        )  # with gradients: its fast path takes no such mask
        np.testing.assert_allclose(program.unflatten(found), wanted, rtol=1e-4, atol=1e-5)


def test_tied_weights_are_one_parameter():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    assert len(check(Tied(), (torch.randn(2, 3),)).graph.parameters) == 1


def test_names_follow_the_pytrees():
    class Nested(nn.Module):
        def forward(self, x, pair, *, scale):
            return {"sum": x + pair["a"], "rest": (pair["b"][0] * scale, None, 3)}

    x = torch.randn(2)
    program = check(Nested(), (x, {"a": x, "b": [x]}), {"scale": x})
    assert list(program.graph.inputs) == ["x", "pair.a", "pair.b.0", "scale"]
    assert list(program.graph.outputs) == ["sum", "rest.0"]


def test_single_result_is_output():
    assert list(import_torch(nn.ReLU(), (torch.randn(2),)).outputs) == ["output"]


def test_symbols_have_the_names_and_facts_of_the_dims():
    dims = ({0: Dim("batch", min=2, max=9), 1: None},)
    graph = import_torch(nn.Linear(3, 2), (torch.randn(4, 3),), dynamic_shapes=dims)
    assert str(graph.inputs["input"].type).startswith("float32[batch, 3]")
    assert repr(graph.symbols["batch"].only_symbol) == "batch in 2..9"
    assert round_trips(graph)


def test_sizes_are_arithmetic_on_dims():
    def function(x):
        batch, length = x.shape
        return x.reshape(batch * length), torch.ones(batch + 1, length // 3), x * batch, x[:, : length - 1]

    others = [((torch.randn(5, 8),), {})]
    dims = {"args": ({0: Dim("b", min=2), 1: Dim("n", min=6)},)}
    check_function(function, torch.randn(3, 7), dynamic_shapes=dims, others=others)


def test_state_that_changes_is_refused_or_an_output():
    module = nn.BatchNorm1d(3).train()
    x = torch.randn(5, 3)
    with pytest.raises(ImportFailure, match="running_mean: a call changes this buffer"):
        import_torch(module, (x,))
    program = import_torch_program(module, (x,), mutations="outputs")
    found = evaluate(program.graph, program.flatten((x,)))
    expected = module(x)
    assert_matches(found["output"], expected)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert_matches(found[program.mutated[name]], getattr(module, name))


def test_in_place_ops_are_functions():
    def function(x):
        y = x.clone()
        y[1:] += 1
        y[0].mul_(2)
        return y

    check_function(function, torch.randn(3, 2))


def test_all_that_is_unsupported_is_listed_at_once():
    def function(x):
        return torch.linalg.pinv(x) + torch.special.bessel_j0(x), torch.linalg.svdvals(x)

    with pytest.raises(ImportFailure) as failure:
        import_torch(Function(function), (torch.eye(3),))
    text = str(failure.value)
    assert "things are not supported" in text
    assert "bessel_j0" in text
    assert "svd" in text
    assert "float32[3, 3]" in text
    assert "test_torch_export.py:153 in function" in text, "the source line"


def test_a_module_that_cannot_be_traced_gives_its_cause():
    def function(x):
        return x + 1 if x.sum() > 0 else x

    with pytest.raises(ImportFailure, match="torch.export cannot trace Function") as failure:
        import_torch(Function(function), (torch.randn(3),))
    assert "data-dependent" in str(failure.value)
    assert len(str(failure.value)) < 800
    assert failure.value.__cause__ is not None


def narrow(x):
    return x * 2 if x.shape[0] < 3 else x * 3


def remainder(x):
    return x * 2 if x.shape[0] % 3 == 1 else x * 3


@pytest.mark.parametrize(
    ("function", "rows", "reason"),
    [
        (lambda x: x + torch.ones(4, 2), 4, r"Constraints violated \(n\)"),
        (lambda x: x.reshape(-1, 8), 8, "what it computes depends on whether"),
        (remainder, 7, "what it computes depends on whether"),
    ],
    ids=["one size", "multiples", "remainders"],
)
def test_code_for_some_sizes_is_not_taken_for_all(function, rows, reason):
    dims = {0: Dim("n", min=2, max=64)}
    with pytest.raises(ImportFailure, match=reason):
        import_torch(Function(function), (torch.ones(rows, 2),), dynamic_shapes=((dims,),))


def test_code_for_a_range_of_sizes_is_taken_for_no_other():
    dims = {0: Dim("n", min=2, max=64)}
    graph = import_torch(Function(narrow), (torch.ones(8, 2),), dynamic_shapes=((dims,),))
    assert (evaluate(graph, [np.ones((3, 2), np.float32)])["output"] == 3).all()
    with pytest.raises(ShapeError):
        evaluate(graph, [np.ones((2, 2), np.float32)])


def test_conditions_on_sizes_that_always_hold():
    """Those of PyTorch 2.11's strides of an attention, which its own solver cannot prove."""
    from torch.utils._sympy import functions

    n = sympy.Symbol("n", positive=True, integer=True)
    least = functions.Min(8 * n, 16 * n, evaluate=False)

    def guarded(condition: sympy.Basic) -> None:
        Sizes(Graph("sizes"), {}).guard([condition])

    guarded(sympy.Eq(least, 8 * n, evaluate=False))
    for other in (
        sympy.Eq(least, 16 * n, evaluate=False),
        sympy.Eq(functions.Min(n, 8, evaluate=False), n, evaluate=False),
    ):
        with pytest.raises(ImportFailure, match="what it computes depends on whether"):
            guarded(other)


def test_what_is_no_module_is_refused():
    with pytest.raises(ImportFailure, match="takes a torch.nn.Module, not function"):
        import_torch(lambda x: x, (torch.randn(3),))


def test_train_mode_dropout_is_refused():
    with pytest.raises(ImportFailure, match=r"bernoulli|dropout|rand"):
        import_torch(nn.Dropout(0.5).train(), (torch.randn(3),))


def test_hooks_of_all_modules_see_modules_of_the_model_alone():
    """Not those that torch.export runs it in, whose results are tuples, nor graphs."""
    model, x = nn.Sequential(nn.Linear(16, 16), nn.GELU()).eval(), torch.randn(5, 16)

    def more(module: nn.Module, _: object, result: Any) -> Any:
        seen.add(type(module))
        return result + 1 if isinstance(result, torch.Tensor) else tuple(one + 1 for one in result)

    seen: set[type[nn.Module]] = set()
    with register_module_forward_hook(more), torch.no_grad():
        graph = import_torch(model, (x,))
        expected = model(x)
    assert_matches(evaluate(graph, [x.numpy()])["output"], expected)
    assert seen == {nn.Sequential, nn.Linear, nn.GELU}
    with (
        register_module_forward_pre_hook(lambda _, arguments: tuple(2 * one for one in arguments)),
        torch.no_grad(),
    ):
        graph = import_torch(model, (x,))
        expected = model(x)
    assert_matches(evaluate(graph, [x.numpy()])["output"], expected)


def test_a_wrong_result_is_noticed():
    with pytest.raises(AssertionError, match="largest error"):
        assert_matches(np.ones(3, np.float32), torch.tensor([1.0, 1.0, 1.01]))
    with pytest.raises(AssertionError):
        assert_matches(np.ones(3, np.float32), torch.tensor([1.0, 1.0, float("nan")]))
    with pytest.raises(AssertionError, match="expected"):
        assert_matches(np.ones(3, np.float64), torch.ones(3))


def test_importing_the_importer_does_not_import_torch():
    code = "import sys, kernels_hub.compiler.importers.torch_export; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
