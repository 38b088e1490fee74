"""Compares plans with what they say of themselves: a run on made-up data between guarded zones, and calls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from kernels_hub.compiler.engines.engine import CompiledPlan, Device, Signature
from kernels_hub.compiler.engines.guard import GuardedPlan
from kernels_hub.compiler.engines.tensors import TORCH, torch_dtype
from kernels_hub.compiler.errors import CompilerError, EngineError, EvaluateError, PlanError
from kernels_hub.compiler.ir.binding import bind_shapes, sized
from kernels_hub.compiler.ir.dims import Dim, dim_symbols
from kernels_hub.compiler.ir.op import TensorType

ZONE = 1 << 16
"""Bytes on each side that nobody may write to."""
MOST_WORKSPACE = 1 << 44
_MARK = 0xA5
_SIZE = 32
"""What a size that is not known is taken for."""


def examine(plan: GuardedPlan, device: Device) -> str:
    """What a plan lies about; "" where it is honest, or refuses the data."""
    where = torch.device("cpu") if device.type == "cpu" else torch.device("cuda", device.index)
    sizes = _middling(plan.signature.inputs)
    inputs = [_made(of, _shape(of.shape, sizes), where) for of in plan.signature.inputs.values()]
    copies = [one.clone() for one in inputs]
    try:
        needed = plan.workspace_size(sizes)
        if wrong := wrong_workspace(needed):
            return wrong
        lie = _executed(plan, inputs, sizes, needed, where)
    except (EvaluateError, PlanError):  # of the data, which are made up
        return ""
    if lie:
        return lie
    for name, one, copy in zip(plan.signature.inputs, inputs, copies, strict=True):
        if not torch.equal(_bits(one), _bits(copy)):
            return f"it wrote to the input {name!r}"
    return ""


def wrong_workspace(needed: object) -> str:
    """What is wrong with a workspace's size; "" where nothing is."""
    if isinstance(needed, bool) or not isinstance(needed, int) or not 0 <= needed < MOST_WORKSPACE:
        return f"its workspace_size is {str(needed)[:60]}, no number of bytes"
    return ""


def require_results(
    signature: Signature, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
) -> None:
    """Raise EngineError where the results of a call differ from what a plan's signature states."""
    sizes = bind_shapes(signature.inputs, [tuple(tensor.shape) for tensor in inputs])
    if wrong := wrong_results(signature.outputs, results, sizes):
        raise EngineError(wrong)


def wrong_results(
    outputs: Mapping[str, TensorType],
    found: Sequence[torch.Tensor],
    sizes: Mapping[str, int],
) -> str:
    """How results differ from what a plan's signature states; "" where they do not."""
    if len(found) != len(outputs):
        return f"it gave {len(found)} outputs, its signature has {len(outputs)}"
    for (name, of), tensor in zip(outputs.items(), found, strict=True):
        if not isinstance(tensor, torch.Tensor):
            return f"it gave a {type(tensor).__name__} for the output {name!r}, no tensor"
        shape = sized(of.shape, sizes)
        if tensor.dtype is not torch_dtype(of.dtype) or (shape is not None and tuple(tensor.shape) != shape):
            return (
                f"it gave {tensor.dtype}{list(tensor.shape)} for the output {name!r}, its signature says {of}"
            )
    return ""


def empty_outputs(plan: CompiledPlan, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Memory for the outputs of a call. Raises ShapeError, and PlanError where the data tell sizes."""
    signature = plan.signature
    sizes = bind_shapes(signature.inputs, [tuple(tensor.shape) for tensor in inputs])
    device = inputs[0].device if inputs else torch.device("cpu")
    outputs = []
    for name, of in signature.outputs.items():
        shape = sized(of.shape, sizes)
        if shape is None:
            raise PlanError(
                f"only the data tell the size of output {name!r}, and its plans have no compute()"
            )
        outputs.append(torch.empty(shape, dtype=torch_dtype(of.dtype), device=device))
    return outputs


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The elements of a tensor, dense, on the host."""
    dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return memoryview(np.asarray(dense.reshape(-1).view(torch.uint8).numpy()).data)


def tensor_of(dtype: str, shape: Sequence[int], block: bytearray) -> torch.Tensor:
    """A tensor of these elements; raises ValueError or KeyError for what is none. It lies in the block."""
    of = TORCH[dtype]
    if not block:
        return torch.empty(tuple(shape), dtype=of)
    return torch.frombuffer(block, dtype=torch.uint8).view(of).reshape(tuple(shape))


def _executed(
    plan: GuardedPlan,
    inputs: Sequence[torch.Tensor],
    sizes: Mapping[str, int],
    needed: int,
    where: torch.device,
) -> str:
    signature = plan.signature
    shapes = {name: sized(of.shape, sizes) for name, of in signature.outputs.items()}
    if plan.computes:
        found = plan.compute(inputs)
        if wrong := wrong_results(signature.outputs, found, sizes):
            return wrong
    if None in shapes.values():
        return ""
    zones = [_zoned(needed, where)]
    outputs = []
    for name, of in signature.outputs.items():
        dtype, shape = torch_dtype(of.dtype), shapes[name]
        assert shape is not None
        block, view = _zoned(math.prod(shape) * dtype.itemsize, where)
        zones.append((block, view))
        outputs.append(view.view(dtype).view(shape))
    given = list(outputs)
    try:
        plan.execute(inputs, given, zones[0][1] if needed else None)
    except (EvaluateError, PlanError):
        raise
    except CompilerError:
        if not plan.computes:
            raise
    names = (f"its workspace of {needed} bytes", *(f"the output {name!r}" for name in signature.outputs))
    for what, (block, view) in zip(names, zones, strict=True):
        start = view.storage_offset()
        end = start + view.numel()
        if bool((block[:start] != _MARK).any()) or bool((block[end:] != _MARK).any()):
            return f"it wrote outside of {what}"
    for name, output in zip(signature.outputs, outputs, strict=True):
        if tuple(output.shape) != shapes[name]:
            return f"it made {list(output.shape)} of the output {name!r}, which is {list(shapes[name] or ())}"
    return ""


def _zoned(size: int, where: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A block of memory, and the aligned part of it that may be written to."""
    block = torch.full((size + 2 * ZONE + 64,), _MARK, dtype=torch.uint8, device=where)
    start = ZONE + -(block.data_ptr() + ZONE) % 64
    return block, block[start : start + size]


def _middling(inputs: Mapping[str, TensorType]) -> dict[str, int]:
    symbols = dim_symbols(dim for of in inputs.values() for dim in of.shape)
    return {
        symbol.name: max(symbol.min, _SIZE if symbol.max is None else min(_SIZE, symbol.max))
        for symbol in symbols
    }


def _shape(dims: Sequence[Dim], sizes: Mapping[str, int]) -> tuple[int, ...]:
    shape = sized(tuple(dims), sizes)
    if shape is None:
        raise PlanError("a size that no symbol tells")
    return shape


def _made(of: TensorType, shape: tuple[int, ...], where: torch.device) -> torch.Tensor:
    """Floats between 0 and 1, and zeros of everything else."""
    dtype = torch_dtype(of.dtype)
    if dtype.is_floating_point and dtype.itemsize > 1:
        return torch.rand(shape, dtype=torch.float32).to(where, dtype)
    return torch.zeros(shape, dtype=torch.uint8).to(where).to(dtype)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
