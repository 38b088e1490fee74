"""Judges gradients of an exported layer on inputs made for its graph, element by element, against autograd.

Autograd runs twice, in float64 and in the module's dtype: how far these are apart is what rounding does to a gradient,
and ours may be a multiple of that away. Inputs that are not finite, or overflow soon, are left out, and so are
elements that are not finite in autograd's own results; where a graph picks among equals (top-k, sort), so are inputs
with equal elements, of which PyTorch picks any.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.export.check import _tensor
from kernels_hub.compiler.export.source import Example, Source
from kernels_hub.compiler.importers.torch_trace import paths_of
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.judging import InputSet, judging_inputs

Gradients = Mapping[str, torch.Tensor | None]
_PATIENCE_S = 8.0
"""Seconds after which no further set is tried; the first `_LEAST` always are."""
_LEAST = 4
_RELATIVE = {torch.float32: 1e-4, torch.float64: 1e-9}
"""Of an element, whatever rounding does; gradients of other dtypes are not judged here."""
_ROUNDING = 32.0
"""How many times autograd's own error ours may be."""
_CANCELLED = 16.0
"""Units of rounding, of the largest gradient, that are left where a sum cancels."""
_LARGEST = 1e9
"""Numbers beyond that overflow in products of a few, and where depends on their order."""
_PICKS = frozenset({"argtopk", "argsort"})


def judge_gradients(
    source: Source,
    sizes: Mapping[str, int],
    ours: Callable[[Example], Gradients],
    theirs: Callable[[nn.Module, Example], Gradients],
) -> int:
    """Compare gradients on all sets of inputs; how many there were.

    ours, theirs: gradients of a call by name: of the layer, and of a module by autograd. Raises EngineError with the
    first element that is wrong.
    """
    example = source.example
    assert example is not None
    if {parameter.dtype for parameter in example.module.parameters() if parameter.is_floating_point()} - set(
        _RELATIVE
    ):
        return 0
    wide = copy.deepcopy(example.module).double()
    end, count = time.monotonic() + _PATIENCE_S, 0
    for one in _sets(source, sizes):
        if count >= _LEAST and time.monotonic() > end:
            break
        given = _call(example, one.arrays)
        try:
            exact = theirs(wide, _widened(given, wide))
            rounded = theirs(example.module, given)
        except (RuntimeError, IndexError, ValueError):
            continue  # the module does not take such inputs
        largest = max((_magnitude(one) for one in exact.values()), default=0.0)
        for name, found in ours(given).items():
            if (reason := _wrong(found, rounded[name], exact[name], largest)) is not None:
                raise EngineError(
                    f"layer {source.graph.name} has a gradient of {name} that differs from the original module's on "
                    f"inputs {one.name!r}: {reason}; a defect of the compiler; nothing was written"
                )
        count += 1
    return count


def _sets(source: Source, sizes: Mapping[str, int]) -> Iterator[InputSet]:
    picks = any(node.op.name in _PICKS for node in source.graph.live())
    for one in judging_inputs(source.graph, sizes=sizes, patience=0, other_sizes=False):
        floats = [array for array in one.arrays.values() if array.dtype.kind == "f"]
        if any(not (np.abs(array) <= _LARGEST).all() for array in floats):
            continue
        if picks and any(len(np.unique(array)) < array.size for array in floats):
            continue
        yield one


def _call(example: Example, arrays: Mapping[str, Array]) -> Example:
    """The example with these arrays for its inputs."""
    leaves, spec = pytree.tree_flatten((example.args, dict(example.kwargs)))
    paths = paths_of(example.module, example.args, example.kwargs)
    made = [
        _tensor(arrays[path]) if path in arrays else leaf for path, leaf in zip(paths, leaves, strict=True)
    ]
    args, kwargs = pytree.tree_unflatten(made, spec)
    return Example(example.module, tuple(args), kwargs, example.dynamic_shapes)


def _widened(example: Example, module: nn.Module) -> Example:
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda one: one.double() if one.is_floating_point() else one,
        (example.args, dict(example.kwargs)),
    )  # fmt: skip
    return Example(module, args, kwargs, example.dynamic_shapes)


def _wrong(
    tensor: torch.Tensor | None, rounded: torch.Tensor | None, exact: torch.Tensor | None, largest: float
) -> str | None:
    """What is wrong with a gradient; None where nothing is. largest: magnitude of any gradient of these inputs."""
    like = next((one for one in (tensor, rounded, exact) if one is not None), None)
    if like is None or not like.numel():
        return None
    ours, theirs, true = (
        torch.zeros(like.shape, dtype=torch.float64) if one is None else one.detach().to_dense().double()
        for one in (tensor, rounded, exact)
    )
    judged = torch.isfinite(theirs) & torch.isfinite(true)
    if not judged.any():
        return None
    noise = float((theirs - true)[judged].abs().max())
    # Sums that cancel leave what their terms were rounded by, though autograd's order of them may leave nothing.
    cancelled = _CANCELLED * torch.finfo(like.dtype).eps * largest
    bound = _RELATIVE.get(like.dtype, 1e-4) * true.abs() + _ROUNDING * noise + cancelled
    error = (ours - true).abs()
    wrong = judged & ~(error <= bound)
    if not wrong.any():
        return None
    place = tuple(wrong.nonzero()[0].tolist())
    return f"element {list(place)} is {float(ours[place]):.6g}, expected {float(true[place]):.6g}"


def _magnitude(tensor: torch.Tensor | None) -> float:
    """The largest finite magnitude of a gradient."""
    if tensor is None or not tensor.numel():
        return 0.0
    values = tensor.detach().to_dense().abs()
    return float(torch.where(torch.isfinite(values), values, 0.0).max())
