"""Resizing, one axis after the other: each is a linear map of the axis, and the oracle says which.

What the oracle makes of the numbers 0, 1, … (nearest) or of the identity matrix (linear, cubic) along an axis are the
places, or the weights, of that axis. They are read when the kernel is made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels_hub.compiler.engines.library_ops.pointwise import moves
from kernels_hub.compiler.engines.library_ops.site import (
    NATIVE_FLOATS,
    REALS,
    LibraryKernel,
    Reason,
    Run,
    Site,
)
from kernels_hub.compiler.engines.tensors import to_tensor
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Node
from kernels_hub.compiler.ir.op import ReferenceCall, TensorType
from kernels_hub.compiler.ir.ops import op


def _axes(site: Site) -> list[int]:
    """Those that change."""
    scales, before, after = site["scales"], site.operand_shape(0), site.shape
    return [
        axis
        for axis, (size, count) in enumerate(zip(before, after, strict=True))
        if size != count or (scales and scales[axis] != 1.0)
    ]


def _resized_along(site: Site, axis: int, elements: Any) -> Any:
    """What the oracle makes of elements (size, …) resized along their first dim as the site is along an axis."""
    shape = (site.shape[axis], *elements.shape[1:])
    scales = site["scales"]
    attrs = dict(site.node.attrs)
    attrs |= {"shape": shape, "scales": (scales[axis], *(1.0 for _ in shape[1:])) if scales else ()}
    result = TensorType(types.dtype(elements.dtype), shape)
    return op("resize").numpy(ReferenceCall([elements], attrs, (result,), _no_region))


def _no_region(*_: Any) -> Any:
    raise AssertionError("resize has no regions")


def _make_resize(site: Site) -> Run:
    axes = _axes(site)
    if site["mode"] == "nearest":
        places = [
            (
                axis,
                to_tensor(_resized_along(site, axis, np.arange(site.operand_shape(0)[axis]))).to(site.device),
            )
            for axis in axes
        ]

        def pick(x: Tensor) -> Tensor:
            for axis, one in places:
                x = x.index_select(axis, one)
            return x

        return moves(pick, site)
    wide = torch.float64 if site.row.bits == 64 else torch.float32
    weights = [
        (
            axis,
            to_tensor(_resized_along(site, axis, np.eye(site.operand_shape(0)[axis]))).to(site.device, wide),
        )
        for axis in axes
    ]
    dtype = site.dtype

    def interpolate(x: Tensor) -> Tensor:
        if not weights:
            return x
        x = x.to(wide)
        for axis, matrix in weights:
            x = torch.movedim(torch.matmul(torch.movedim(x, axis, -1), matrix.t()), -1, axis)
        return x.to(dtype)

    return interpolate


def _declines(node: Node, _: str) -> Reason:
    if node.attrs["coordinates"] == "crop":
        return "resize of a region"
    if node.attrs["mode"] != "nearest" and node.operands[0].dtype.name not in NATIVE_FLOATS:
        return f"resize by interpolation of {node.operands[0].dtype}"
    return None


KERNELS = {"resize": LibraryKernel(_make_resize, REALS, _declines)}
