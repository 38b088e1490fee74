"""Scaled-dot-product attention of a recognised part, by PyTorch's fused kernel.

The callee is softmax(q @ k^T * scale) @ v with what `rewrite.attention` allows in between. What is added to scores, or
chooses them, is computed as the callee says and handed to PyTorch's kernel as a mask:

1. floats that are added                                  the mask
2. bools that choose between scores and minus infinity    the mask
3. bools that choose between scores and a number          floats to add, 0 or the number, if that is so low that
                                                          it swallows every score; else there is no fused kernel

Rows that are masked whole (every score minus infinity) are NaN in the callee, unless it makes them 0; PyTorch's
kernel makes them 0. So where the callee does not, NaN is put in; rows that it makes 0 for what is kept are made 0.
Heads of k and v that are repeated for groups stay as few as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels_hub.compiler.engines.library_ops.site import Run, Site
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.transform import extract

_LOWEST = -1e30
"""A number below this, added to any score in float32, is itself."""


@dataclass(frozen=True)
class Attention:
    """What a callee computes.

    mask: the value that is added, or (chooses) the bool that is true where scores are `kept`; fill: what stands
    elsewhere. zeroed: the bool that is true in rows that become 0. grouped: k and v have fewer heads than q.
    """

    callee: Graph
    scale: float
    grouped: bool = False
    mask: Value | None = None
    chooses: bool = False
    kept: bool = True
    fill: float = -math.inf
    safe: bool = False
    zeroed: Value | None = None

    def make(self, site: Site) -> Run:
        """The kernel."""
        names = list(self.callee.inputs)
        at_q, at_k, at_v = (names.index(name) for name in ("q", "k", "v"))
        rank = site.rank
        masks, zeros = self._part(site, self.mask), self._part(site, self.zeroed)

        def run(*operands: Tensor) -> Tensor:
            q, k, v = _four(operands[at_q]), _four(operands[at_k]), _four(operands[at_v])
            mask, dead = None, None
            if masks is not None:
                mask, dead = self._added(masks(operands), q.dtype)
            result = F.scaled_dot_product_attention(q, k, v, mask, scale=self.scale, enable_gqa=self.grouped)
            if dead is not None and (dead.device.type != "cpu" or bool(dead.any())):
                result = result.masked_fill(dead, math.nan)
            if zeros is not None:
                result = result.masked_fill(_narrowed(_four(zeros(operands)))[..., :1], 0.0)
            return result.reshape(result.shape[4 - rank :])

        return run

    def _part(self, site: Site, value: Value | None) -> Callable[[tuple[Tensor, ...]], Tensor] | None:
        """A value of the callee as a function of its operands."""
        if value is None:
            return None
        return site.part(extract(self.callee, self.callee.inputs, {"y": value}, f"{self.callee.name} mask"))

    def _added(self, mask: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """The mask as PyTorch takes it, and the rows that are to be NaN."""
        mask = _narrowed(_four(mask))
        if not self.chooses:
            return mask, None if self.safe else (mask == -math.inf).all(-1, keepdim=True)
        kept = mask if self.kept else ~mask
        if self.fill == -math.inf:
            return kept, None if self.safe else ~kept.any(-1, keepdim=True)
        return torch.where(kept, torch.zeros((), dtype=dtype, device=kept.device), self.fill), None


def _four(x: Tensor) -> Tensor:
    """With dims of 1 in front, as many as make four."""
    while x.dim() < 4:
        x = x.unsqueeze(0)
    return x


def _narrowed(mask: Tensor) -> Tensor:
    """Without the repetitions of a broadcast, which PyTorch makes itself; the keys stay."""
    for axis in range(mask.dim() - 1):
        if mask.size(axis) > 1 and mask.stride(axis) == 0:
            mask = mask.narrow(axis, 0, 1)
    return mask


def attention(node: Node, callee: Graph) -> Attention | None:
    """What the callee of a call computes, if that is attention that PyTorch's kernel computes too."""
    try:
        return _Reading(node, callee).read()
    except _OtherwiseError:
        return None


class _OtherwiseError(Exception):
    """The callee is something else."""


class _Reading:
    """The way from the result of a callee back to q, k and v."""

    def __init__(self, node: Node, callee: Graph) -> None:
        self.callee, self.inputs = callee, callee.inputs
        self._given = dict(zip(callee.inputs.values(), node.operands, strict=True))
        dtypes = {one.dtype for name, one in self.inputs.items() if name in {"q", "k", "v"}}
        if not {"q", "k", "v"} <= set(self.inputs) or dtypes != {node.results[0].dtype}:
            raise _OtherwiseError
        if not 2 <= self.inputs["q"].rank <= 4:
            raise _OtherwiseError
        self._of_q = _depending(callee, self.inputs["q"])

    def read(self) -> Attention:
        """Raises _OtherwiseError."""
        weights, v = self._op(next(iter(self.callee.outputs.values())), "matmul").operands
        soft, blank = self._blanked(_uncast(weights))
        soft = self._op(soft, "softmax")
        if soft.attrs["axis"] != soft.rank - 1:
            raise _OtherwiseError
        scores, found = self._masked(_uncast(soft.operands[0]))
        product, scale = self._scaled(_uncast(scores))
        q, turned = self._op(product, "matmul").operands
        rank = turned.rank
        order = self._op(turned, "permute").attrs["order"]
        if q is not self.inputs["q"] or order != (*range(rank - 2), rank - 1, rank - 2):
            raise _OtherwiseError
        grouped = _grouped(turned.operands[0], self.inputs["k"])
        if grouped is not _grouped(v, self.inputs["v"]):
            raise _OtherwiseError
        return Attention(self.callee, scale, grouped, **found, **blank)

    def _blanked(self, value: Value) -> tuple[Value, dict[str, Any]]:
        """The softmax, and which rows the callee makes 0."""
        if value.op_name != "select":
            return value, {}
        rows, blank, soft = value.operands
        if self._number(blank) != 0:
            raise _OtherwiseError
        soft = _uncast(soft)
        if rows in self._of_q:  # rows of NaN, or of minus infinities: those that are masked whole
            if rows.op_name == "isnan" and _uncast(rows.operands[0]) is soft:
                return soft, {"safe": True}
            if self._lowest(_unviewed(rows), soft):
                return soft, {"safe": True}
            raise _OtherwiseError
        return soft, {"safe": True, "zeroed": rows}

    def _lowest(self, rows: Value, soft: Value) -> bool:
        """Whether it is max(scores) == -inf."""
        if rows.op_name != "eq":
            return False
        one, other = rows.operands
        if self._number_or_none(other) != -math.inf:
            one, other = other, one
        top = _unviewed(one)
        if self._number_or_none(other) != -math.inf or top.op_name != "reduce_max":
            return False
        return _uncast(top.operands[0]) is _uncast(soft.operands[0]) and top.attrs["axes"] == (soft.rank - 1,)

    def _masked(self, value: Value) -> tuple[Value, dict[str, Any]]:
        """The scores below a mask, and what is known of it."""
        if value.op_name == "add":
            one, other = value.operands
            scores, mask = (one, other) if one in self._of_q else (other, one)
            if mask in self._of_q or mask.dtype is not self.inputs["q"].dtype:
                raise _OtherwiseError
            return scores, {"mask": mask}
        if value.op_name != "select":
            return value, {}
        kept, then, other = value.operands
        scores, fill = (then, other) if then in self._of_q else (other, then)
        number = self._number(fill)
        if kept in self._of_q or not number < _LOWEST:
            raise _OtherwiseError
        return scores, {"mask": kept, "chooses": True, "kept": scores is then, "fill": number}

    def _scaled(self, value: Value) -> tuple[Value, float]:
        """What is scaled, and by how much."""
        if value.op_name not in {"mul", "div"}:
            return value, 1.0
        product, factor = value.operands
        if value.op_name == "mul" and factor in self._of_q:
            product, factor = factor, product
        number = self._number(factor)
        if not math.isfinite(number) or (value.op_name == "div" and number == 0):
            raise _OtherwiseError
        return product, number if value.op_name == "mul" else 1 / number

    def _number(self, value: Value) -> float:
        """The number that every element is."""
        found = self._number_or_none(value)
        if found is None or math.isnan(found):
            raise _OtherwiseError
        return found

    def _number_or_none(self, value: Value) -> float | None:
        value = _unviewed(value)
        found = self._given[value].scalar if value in self._given else value.scalar
        return None if found is None else float(found)

    @staticmethod
    def _op(value: Value, name: str) -> Value:
        if value.op_name != name:
            raise _OtherwiseError
        return value


def _depending(callee: Graph, source: Value) -> set[Value]:
    """Values that depend on one."""
    found = {source}
    for node in callee.nodes:
        if any(operand in found for operand in node.operands):
            found.update(node.results)
    return found


def _uncast(value: Value) -> Value:
    while value.op_name == "cast":
        value = value.operands[0]
    return value


def _unviewed(value: Value) -> Value:
    while value.op_name in {"broadcast", "reshape", "permute"}:
        value = value.operands[0]
    return value


def _grouped(value: Value, before: Value) -> bool:
    """Whether heads (dim 1 of four) are repeated for groups. Raises _OtherwiseError for what is neither."""
    if value is before:
        return False
    if value.op_name != "reshape" or value.rank != 4 or before.rank != 4:
        raise _OtherwiseError
    spread = value.operands[0]
    if spread.op_name != "broadcast" or spread.operands[0] is not before:
        raise _OtherwiseError
    if spread.rank != 5 or spread.attrs["axes"] != (0, 1, 3, 4) or value.shape[2:] != before.shape[2:]:
        raise _OtherwiseError
    return True
