"""The outputs of a graph, found in what a call of its layer returns and leaves in caches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kernels_hub.compiler.export.source import Source
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.runtime.arguments import dtype_of
from kernels_hub.compiler.runtime.caches import numbered
from kernels_hub.compiler.runtime.parts import Cache, Record, Tensor


def outputs_of_call(
    source: Source,
    sizes: Mapping[str, int],
    result: object,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> list[torch.Tensor]:
    """The outputs, of a call's result and of what it left in the caches among its arguments. sizes: of its symbols.

    An output that only views show is the memory that they lie in. Raises LookupError where that holds something else,
    as it may in eager.
    """
    tensors: dict[int, torch.Tensor] = {}
    _collect(source.result, result, tensors)
    if source.changed:
        bound = source.signature.bind(*args, **kwargs).arguments
        for name, of in source.changed.items():
            pairs = numbered(bound[name])
            _collect(list(of.values()), [pairs[place] for place in of], tensors)
    outputs = list(source.graph.outputs.values())
    for number, view in enumerate(source.views, len(outputs)):
        tensor = tensors.pop(number)
        if isinstance(view.of, Tensor) and view.of.place not in tensors:
            output = outputs[view.of.place]
            shape = [int(substitute(dim, sizes)) for dim in output.shape]
            tensors[view.of.place] = _memory(tensor, shape, dtype_of(output.dtype.name))
    if source.assertions is not None:
        tensors[source.assertions] = torch.tensor(True)  # the call did not raise
    return [tensors[number] for number in sorted(tensors)]


def _memory(tensor: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """All that a tensor's memory holds, as a tensor of this shape."""
    found = torch.empty(0, dtype=dtype).set_(tensor.detach().untyped_storage())
    if found.numel() != torch.Size(shape).numel():
        raise LookupError("the memory of a view holds more than the output")
    whole: torch.Tensor = found.view(shape)
    return whole


def _collect(tree: Any, value: Any, tensors: dict[int, torch.Tensor]) -> None:
    if isinstance(tree, Tensor):
        tensors[tree.place] = value
    elif isinstance(tree, Record):
        for name, one in tree.fields.items():
            _collect(one, value[name] if type(value) is OrderedDict else getattr(value, name), tensors)
    elif isinstance(tree, Cache):
        _collect(tree.numbered(), numbered(value), tensors)
    elif isinstance(tree, dict):
        for name, one in tree.items():
            _collect(one, value[name], tensors)
    elif isinstance(tree, (tuple, list)):
        for one, inner in zip(tree, value, strict=True):
            _collect(one, inner, tensors)
