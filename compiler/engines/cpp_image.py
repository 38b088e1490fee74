"""Memory images of C++ plans: the built library, packed weights and the layout of calls, without graph or schedule.

A plan that was compiled is written as an image into the cache of opened files, and runs from there without anything of
what makes plans: no importer, no rewrite, no schedule. An image is native code and addresses of memory, so it is read
from a cache of this user's alone, never from a file that somebody gives (`opened`); its library is that of the cache of
compiled code, by its digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta

from kernels_hub.compiler.engines.calls import CallLayout, ScratchSpan
from kernels_hub.compiler.engines.container import Bytes, Count
from kernels_hub.compiler.engines.engine import Device, Signature, StepProfile
from kernels_hub.compiler.engines.native_plan import NativePlan, PlacedWeights
from kernels_hub.compiler.engines.type_rows import (
    DimRow,
    NamedRow,
    SymbolRow,
    dim_of,
    dim_row,
    symbol_of,
    symbol_row,
    type_of,
    type_row,
)
from kernels_hub.compiler.errors import CompilerError, EngineError, PlanError
from kernels_hub.compiler.ir.dims import Dim, Expr, atom, dim_symbols
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.runtime.errors import BuildError
from kernels_hub.compiler.runtime.intervals import ALIGNMENT, aligned
from kernels_hub.compiler.runtime.native import Native
from kernels_hub.compiler.runtime.toolchain import whole
from kernels_hub.files import cache_folder
from kernels_hub.parsing import Name, Sha256, Struct, Text

_Moment = Annotated[int, Meta(ge=0, lt=1 << 31)]


class SpanRow(Struct, frozen=True):
    """A `ScratchSpan`."""

    size: DimRow
    buffers: tuple[Count, ...]
    first: _Moment
    last: _Moment


class ImageRow(Struct, frozen=True, kw_only=True):
    """An image, but for its weights. weights: (address number, offset among the weights, bytes)."""

    library: Name
    sha256: Sha256
    symbols: dict[str, SymbolRow]
    inputs: tuple[NamedRow, ...]
    outputs: tuple[NamedRow, ...]
    input_buffers: tuple[Count, ...]
    output_buffers: tuple[Count, ...]
    sizes: tuple[Text, ...]
    spans: tuple[SpanRow, ...]
    messages: tuple[Text, ...]
    addresses: Count
    weights: tuple[tuple[Count, Bytes, Bytes], ...]


class CppImagePlan(NativePlan):
    """A plan that came from an image. It has no graph: it is neither serialized nor profiled kernel by kernel."""

    def serialize(self) -> bytes:
        """Raises EngineError."""
        raise EngineError("a plan from the cache of opened files has no graph; compile the model again")

    def profile(self, inputs: Sequence[torch.Tensor], repeats: int = 10) -> list[StepProfile]:  # noqa: ARG002
        """Raises EngineError."""
        raise EngineError("a plan from the cache of opened files has no steps; compile the model again")


def image_of(plan: NativePlan) -> tuple[dict[str, object], list[memoryview]] | None:
    """The row of an image, and its weights in parts; None where its library is not in the cache of compiled code."""
    path = plan.native.path
    library = whole(path)
    if library is None or path.parent != cache_folder("compiled"):
        return None
    layout, signature = plan.layout, plan.signature
    of_all = (*signature.inputs.values(), *signature.outputs.values())
    dims = [*(dim for of in of_all for dim in of.shape), *(span.size for span in layout.spans)]
    weights, parts = _parts(plan.weights)
    row = {
        "library": path.name,
        "sha256": hashlib.sha256(library).hexdigest(),
        "symbols": {one.name: symbol_row(atom(one)) for one in dim_symbols(dims)},
        "inputs": [[name, *type_row(of)] for name, of in signature.inputs.items()],
        "outputs": [[name, *type_row(of)] for name, of in signature.outputs.items()],
        "input_buffers": layout.inputs,
        "output_buffers": layout.outputs,
        "sizes": layout.symbols,
        "spans": [
            {"size": dim_row(span.size), "buffers": span.buffers, "first": span.first, "last": span.last}
            for span in layout.spans
        ],
        "messages": plan.messages,
        "addresses": len(plan.weights.addresses),
        "weights": weights,
    }
    return row, parts


def _parts(weights: PlacedWeights) -> tuple[list[tuple[int, int, int]], list[memoryview]]:
    """Where each of the weights lies when all are written one after the other, and these; what is shared lies once."""
    rows: list[tuple[int, int, int]] = []
    parts: list[memoryview] = []
    begins: dict[tuple[int, int], int] = {}
    total = 0
    for where, held in weights.held.items():
        data = _bytes(held)
        key = (weights.addresses[where], len(data))
        if key not in begins:
            begins[key] = total
            parts.append(data)
            if padding := aligned(len(data)) - len(data):
                parts.append(memoryview(bytes(padding)))
            total += aligned(len(data))
        rows.append((where, begins[key], len(data)))
    return rows, parts


def _bytes(held: torch.Tensor | Array) -> memoryview:
    array = held.numpy() if isinstance(held, torch.Tensor) else np.ascontiguousarray(held)
    return array.reshape(-1).view(np.uint8).data


def memory_for(size: int) -> torch.Tensor:
    """Memory that weights of an image are read into, aligned."""
    return torch.empty(max(size, ALIGNMENT), dtype=torch.uint8)


def load_image(row: ImageRow, weights: torch.Tensor, what: str, device: Device) -> CppImagePlan:
    """The plan of an image. weights: in memory of `memory_for`, which the plan keeps.

    Raises PlanError where the library is gone, or where the row contradicts itself.
    """
    if device.type != "cpu":
        raise PlanError(f"{what} is for the CPU, not for {device}")
    path = cache_folder("compiled") / row.library
    library = whole(path)
    if library is None or hashlib.sha256(library).hexdigest() != row.sha256:
        raise PlanError(f"{what}: its library {path} is gone, or another one")
    try:
        facts = {name: symbol_of(name, *bounds) for name, bounds in row.symbols.items()}
        signature = Signature(
            {name: type_of(rest, facts) for name, *rest in row.inputs},
            {name: type_of(rest, facts) for name, *rest in row.outputs},
        )
        spans = tuple(
            ScratchSpan(dim_of(span.size, facts), span.buffers, span.first, span.last) for span in row.spans
        )
    except CompilerError as error:
        raise PlanError(f"{what}: the image makes no sense ({error})") from error
    layout = CallLayout(row.input_buffers, row.output_buffers, row.sizes, spans)
    _check(row, layout, signature, facts, weights.numel(), what)
    placed = PlacedWeights([0] * row.addresses)
    for where, begin, size in row.weights:
        placed.hold(where, weights[begin : begin + max(size, 1)])
    try:
        native = Native(path)
    except BuildError as error:
        raise PlanError(f"{what}: {error}") from error
    return CppImagePlan(signature, layout, row.messages, native, placed)


def _check(
    row: ImageRow,
    layout: CallLayout,
    signature: Signature,
    facts: Mapping[str, Dim | Expr],
    held: int,
    what: str,
) -> None:
    numbers = [*layout.inputs, *layout.outputs, *(where for where, _, _ in row.weights)]
    numbers += [buffer for span in layout.spans for buffer in span.buffers]
    if (
        len(layout.inputs) != len(signature.inputs)
        or len(layout.outputs) != len(signature.outputs)
        or max(numbers, default=0) >= row.addresses
        or not set(layout.symbols) <= facts.keys()
        or any(begin % ALIGNMENT or begin + size > held for _, begin, size in row.weights)
    ):
        raise PlanError(f"{what}: the image contradicts itself")
