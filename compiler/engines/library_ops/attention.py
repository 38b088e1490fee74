"""Scaled-dot-product attention of a recognised part, by PyTorch's fused kernel.

softmax(q @ k^T * scale + mask) @ v, the mask added, or choosing scores (a bool, and a number elsewhere). PyTorch's
kernel gives 0 for rows whose every score is minus infinity; the softmax that the callee spells out gives NaN, so that
is put in. A mask that chooses becomes one that is added where the number is so low that no score changes it, or minus
infinity; for others there is no fused kernel. Heads of k and v that are repeated for groups stay as few as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels_hub.compiler.engines.library_ops.site import Run, Site
from kernels_hub.compiler.ir.graph import Graph, Node, Value

_LOWEST = -1e30
"""Numbers below swallow every score in float32."""


@dataclass(frozen=True)
class Attention:
    """What a callee computes. scale: of the scores. kept: the bool is true where scores stay. fill: what stands
    elsewhere. grouped: k and v have fewer heads than q.
    """

    names: tuple[str, ...]
    scale: float
    kept: bool = True
    fill: float = -math.inf
    grouped: bool = False

    def make(self, site: Site) -> Run:
        """The kernel."""
        rank = site.rank
        places = {name: place for place, name in enumerate(self.names)}

        def run(*operands: Tensor) -> Tensor:
            q, k, v = (_four(operands[places[name]]) for name in ("q", "k", "v"))
            mask, dead = self._mask(operands, places, q.dtype)
            result = F.scaled_dot_product_attention(q, k, v, mask, scale=self.scale, enable_gqa=self.grouped)
            if dead is not None and (dead.device.type != "cpu" or bool(dead.any())):
                result = result.masked_fill(dead, math.nan)
            return result.reshape(result.shape[4 - rank :])

        return run

    def _mask(
        self, operands: tuple[Tensor, ...], places: dict[str, int], dtype: torch.dtype
    ) -> tuple[Tensor | None, Tensor | None]:
        """What is added to the scores, and the rows of which nothing is left."""
        if "mask" in places:
            mask = _narrowed(_four(operands[places["mask"]]))
            dead = (mask == -math.inf).all(-1, keepdim=True)
            return mask, dead
        if "kept" not in places:
            return None, None
        kept = _narrowed(_four(operands[places["kept"]]))
        kept = kept if self.kept else ~kept
        if self.fill == -math.inf:
            return kept, ~kept.any(-1, keepdim=True)
        zero = torch.zeros((), dtype=dtype, device=kept.device)
        return torch.where(kept, zero, self.fill), None


def _four(x: Tensor) -> Tensor:
    """With dims of 1 in front, as many as make four."""
    while x.dim() < 4:
        x = x.unsqueeze(0)
    return x


def _narrowed(mask: Tensor) -> Tensor:
    """Without the repetitions of a broadcast, which PyTorch repeats itself; the keys stay."""
    for axis in range(mask.dim() - 1):
        if mask.size(axis) > 1 and mask.stride(axis) == 0:
            mask = mask.narrow(axis, 0, 1)
    return mask


def attention(node: Node, callee: Graph) -> Attention | None:
    """What the callee of a call computes, if that is attention that PyTorch's kernel computes too."""
    names = tuple(callee.inputs)
    inputs = callee.inputs
    if not {"q", "k", "v"} <= set(names) or not 2 <= inputs["q"].rank <= 4:
        return None
    kinds = {one.dtype for name, one in inputs.items() if name in {"q", "k", "v", "mask"}}
    if kinds != {node.results[0].dtype}:
        return None
    number = {
        name: operand.scalar
        for name, operand in zip(names, node.operands, strict=True)
        if name in {"scale", "fill"}
    }
    if None in number.values():
        return None
    root = _only(callee)
    if root.op_name != "matmul":
        return None
    weights = _uncast(root.operands[0])
    if weights.op_name != "softmax" or weights.attrs["axis"] != weights.rank - 1:
        return None
    masked = _masked(_uncast(weights.operands[0]), inputs)
    if masked is None:
        return None
    scores, kept = masked
    found = _scaled(scores, inputs, number.get("scale"))
    if found is None:
        return None
    product, scale = found
    if product.op_name != "matmul" or product.operands[0] is not inputs["q"]:
        return None
    turned = product.operands[1]
    rank = turned.rank
    if turned.op_name != "permute" or turned.attrs["order"] != (*range(rank - 2), rank - 1, rank - 2):
        return None
    k, v = _heads(turned.operands[0], inputs["k"]), _heads(root.operands[1], inputs["v"])
    fill = float(number.get("fill", -math.inf))
    if k is None or v is None or k is not v or ("kept" in names and fill > _LOWEST):
        return None
    if math.isnan(fill) or not math.isfinite(scale):
        return None
    return Attention(names, scale, kept, fill, k)


def _only(callee: Graph) -> Value:
    return next(iter(callee.outputs.values()))


def _uncast(value: Value) -> Value:
    while value.op_name == "cast":
        value = value.operands[0]
    return value


def _unspread(value: Value) -> Value:
    return value.operands[0] if value.op_name == "broadcast" else value


def _masked(value: Value, inputs: dict[str, Value]) -> tuple[Value, bool] | None:
    """The scores below a mask, and whether the bool is true where they stay."""
    if "mask" in inputs:
        if value.op_name != "add" or inputs["mask"] not in value.operands:
            return None
        return next(one for one in value.operands if one is not inputs["mask"]), True
    if "kept" not in inputs:
        return value, True
    if value.op_name != "select" or value.operands[0] is not inputs["kept"]:
        return None
    _, then, other = value.operands
    if _unspread(other) is inputs["fill"]:
        return then, True
    return (other, False) if _unspread(then) is inputs["fill"] else None


def _scaled(value: Value, inputs: dict[str, Value], number: float | None) -> tuple[Value, float] | None:
    """What is scaled, and by how much."""
    if "scale" not in inputs:
        return value, 1.0
    if value.op_name not in {"mul", "div"} or number is None:
        return None
    scale = inputs["scale"]
    product, factor = value.operands
    if _unspread(factor) is not scale:
        product, factor = factor, product
        if value.op_name == "div":
            return None
    if _unspread(factor) is not scale:
        return None
    if value.op_name == "div":
        return (product, 1 / number) if number else None
    return product, float(number)


def _heads(value: Value, before: Value) -> bool | None:
    """Whether heads are repeated for groups (dim 1 of four); None where it is neither that nor the operand itself."""
    if value is before:
        return False
    if value.op_name != "reshape" or value.rank != 4 or before.rank != 4:
        return None
    spread = value.operands[0]
    if spread.op_name != "broadcast" or spread.operands[0] is not before:
        return None
    groups = spread.rank == 5 and spread.attrs["axes"] == (0, 1, 3, 4)
    return (
        True if groups and value.shape[2:] == before.shape[2:] and value.shape[0] == before.shape[0] else None
    )
