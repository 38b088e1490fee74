"""What engines share that run schedules: who declines what, where a call's tensors go, what is kept for sizes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import torch

from kernels_hub.compiler.binding import bind_shapes
from kernels_hub.compiler.engines.engine import Decline, Signature
from kernels_hub.compiler.engines.tensors import torch_dtype
from kernels_hub.compiler.ir.dims import dim_symbols
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.schedule.kernel import Buffer, Schedule
from kernels_hub.compiler.schedule.memory import number

MOST_BINDINGS = 32
"""Sizes of symbols for which the places of buffers are kept."""

Outputs = list[tuple[list[int], torch.dtype]]
T = TypeVar("T")


def declined(found: Mapping[Value, str]) -> Decline:
    """A Decline about values, of which the first is named; `found` is not empty."""
    value, reason = next(iter(found.items()))
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return Decline(f"{value} ({value.op_name}): {reason}{more}", frozenset(one.id for one in found))


def untold(graph: Graph) -> dict[Value, str]:
    """Values with a size that no shape of an input tells."""
    told = dim_symbols(dim for value in graph.inputs.values() for dim in value.shape)
    found: dict[Value, str] = {}
    for node in graph.live():
        if node.op.name != "input" and (missing := node.symbols() - told):
            names = ", ".join(sorted(one.name for one in missing))
            found.update(dict.fromkeys(node.results, f"no input's shape tells the size {names}"))
    return found


class Calls(Generic[T]):
    """Where the tensors of a call go, and what `bind(sizes)` made for the newest few sets of sizes."""

    def __init__(
        self,
        schedule: Schedule,
        signature: Signature,
        buffers: Sequence[Buffer],
        bind: Callable[[dict[str, int]], T],
    ) -> None:
        place_of = {buffer: place for place, buffer in enumerate(buffers)}
        self.inputs = [place_of[schedule.inputs[name]] for name in signature.inputs]
        self.outputs = [place_of[schedule.outputs[name]] for name in signature.outputs]
        self._declared, self._bind = signature.inputs, bind
        self._symbolic = bool(dim_symbols(dim for one in signature.inputs.values() for dim in one.shape))
        self._bound: OrderedDict[tuple[torch.Size, ...], T] = OrderedDict()
        self._lock = threading.Lock()

    def sizes(self, inputs: Sequence[torch.Tensor]) -> dict[str, int]:
        """The sizes of the symbols. Raises ShapeError where shapes contradict each other."""
        return bind_shapes(self._declared, [one.shape for one in inputs]) if self._symbolic else {}

    def of(self, inputs: Sequence[torch.Tensor]) -> T:
        """What is bound for inputs of these shapes."""
        key = tuple([one.shape for one in inputs]) if self._symbolic else ()
        found = self._bound.get(key)
        if found is None:
            found = self._bind(self.sizes(inputs))
            with self._lock:
                self._bound[key] = found
                while len(self._bound) > MOST_BINDINGS:
                    self._bound.popitem(last=False)
        return found


def outputs_of(signature: Signature, sizes: Mapping[str, int]) -> Outputs:
    """Shape and dtype of each output."""
    return [
        ([number(dim, sizes) for dim in of.shape], torch_dtype(of.dtype)) for of in signature.outputs.values()
    ]
