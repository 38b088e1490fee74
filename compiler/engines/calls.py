"""Calls of native programs: where their tensors go, what scratch memory they need, and bindings by shape.

Knows nothing of schedules, so that a program that was compiled before is run without importing what compiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kernels_hub.compiler.engines.engine import Signature
from kernels_hub.compiler.engines.tensors import torch_dtype
from kernels_hub.compiler.ir.binding import bind_shapes
from kernels_hub.compiler.ir.dims import Dim, dim_symbols
from kernels_hub.compiler.ir.extrema import number
from kernels_hub.compiler.runtime.binding import Binding, ShapeCache
from kernels_hub.compiler.runtime.intervals import ArenaLayout, arena_layouts, roomy


@dataclass(frozen=True)
class ScratchSpan:
    """Scratch buffers that share memory. size: bytes; buffers: their numbers; first, last: kernels that need one."""

    size: Dim
    buffers: tuple[int, ...]
    first: int
    last: int


@dataclass(frozen=True)
class CallLayout:
    """What a program is called with: numbers of its buffers, and the symbols whose sizes it takes."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    symbols: tuple[str, ...]
    spans: tuple[ScratchSpan, ...]


class ScratchLayouts:
    """Where scratch buffers lie in an arena, for one set of sizes after another.

    A size that depends on symbols is rounded up, so that most calls find what another made.
    """

    def __init__(self, spans: Sequence[ScratchSpan]) -> None:
        self._sizes = [span.size for span in spans]
        self._layouts = arena_layouts([(span.buffers, span.first, span.last) for span in spans])

    def of(self, sizes: Mapping[str, int]) -> ArenaLayout:
        """For these sizes of the symbols."""
        return self._layouts.of(
            [size if isinstance(size, int) else roomy(number(size, sizes)) for size in self._sizes]
        )


class Calls:
    """Where the tensors of a call go, and the bindings of a program for the newest few sets of shapes."""

    def __init__(self, layout: CallLayout, signature: Signature) -> None:
        self.layout = layout
        self.inputs, self.outputs = layout.inputs, layout.outputs
        self._signature = signature
        self._is_symbolic = bool(
            dim_symbols(dim for value in signature.inputs.values() for dim in value.shape)
        )
        self._scratch = ScratchLayouts(layout.spans)
        self._bindings = ShapeCache(self._bound)
        self._only: Binding | None = None if self._is_symbolic else self._binding({})

    def sizes(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """The sizes of the symbols. Raises ShapeError where shapes contradict each other."""
        return bind_shapes(self._signature.inputs, shapes) if self._is_symbolic else {}

    def of(self, inputs: Sequence[torch.Tensor]) -> Binding:
        """What is bound for inputs of these shapes."""
        return self._only or self._bindings.of(inputs)

    def workspace_size(self, sizes: Mapping[str, int]) -> int:
        """Bytes of the arena."""
        return self._scratch.of(sizes).size

    def _bound(self, shapes: tuple[tuple[int, ...], ...]) -> Binding:
        return self._binding(self.sizes(shapes))

    def _binding(self, sizes: Mapping[str, int]) -> Binding:
        outputs = [
            ([number(dim, sizes) for dim in of.shape], torch_dtype(of.dtype))
            for of in self._signature.outputs.values()
        ]
        return Binding([sizes[name] for name in self.layout.symbols], self._scratch.of(sizes), outputs)
