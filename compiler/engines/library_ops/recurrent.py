"""Recurrent cells with PyTorch: one product and a few pointwise kernels a step."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels_hub.compiler.engines.library_ops.site import NATIVE_FLOATS, LibraryKernel, Run, Site
from kernels_hub.compiler.ir.graph import Node
from kernels_hub.compiler.ir.ops.recurrent import states


def _make(site: Site) -> Run:
    cell, reverse, has_lengths = site["cell"], site["reverse"], site["lengths"]
    count, dtype = states(cell), site.dtype
    is_quantized = site["quantized"]
    compute = torch.float64 if dtype is torch.float64 else torch.float32

    def run(x: Tensor, weight: Tensor, *more: Tensor) -> Tensor:
        time, batch = x.shape[:2]
        lengths = more[-1].long().clamp(0, time) if has_lengths else None
        scales = more[-2 - has_lengths].to(compute) if is_quantized else None
        x, weight = x.to(compute), weight.to(compute)
        bias = more[count].to(compute) if cell == "gru_after" else None
        directions, rows, hidden = weight.shape
        ends = x.new_full((batch,), time, dtype=torch.int64) if lengths is None else lengths
        steps = int(ends.max()) if batch else 0
        every = torch.arange(batch, device=x.device)
        result = x.new_zeros((time + 1, count, directions, batch, hidden))
        for way in range(directions):
            state = [tensor[way].to(compute) for tensor in more[:count]]
            columns = weight[way].t()
            if scales is not None:
                columns = (columns - more[-1 - has_lengths][way].to(compute)) * scales[way]
            own_bias = None if bias is None else bias[way]
            backwards = reverse or way == 1
            for done in range(steps):
                old = state if scales is None else [_quantized(state[0], done <= ends), state[1]]
                if lengths is None:
                    at = time - 1 - done if backwards else done
                    state = _step(cell, x[at, :, way * rows : (way + 1) * rows], old, columns, own_bias)
                    for index, one in enumerate(state):
                        result[at, index, way] = one
                    continue
                goes_on = done < lengths
                places = torch.where(goes_on, lengths - 1 - done, done) if backwards else every * 0 + done
                new = _step(cell, x[places, every, way * rows : (way + 1) * rows], old, columns, own_bias)
                state = [torch.where(goes_on.unsqueeze(1), a, b) for a, b in zip(new, state, strict=True)]
                for index, one in enumerate(state):
                    result[places, index, way, every] = torch.where(goes_on.unsqueeze(1), one, 0)
            for index, one in enumerate(state):
                result[time, index, way] = one
        return result.to(dtype)

    return run


def _quantized(h: Tensor, seen: Tensor) -> Tensor:
    """As `ir.ops.recurrent.quantized`, times the scale."""
    given = torch.where(seen.unsqueeze(1), h, 0.0)
    low, high = given.amin().clamp(max=0), given.amax().clamp(min=0)
    scale = (high - low) / 255
    scale = torch.where(scale == 0, 1.0, scale)
    zero = (0 - low / scale).clamp(0, 255).round()
    return (((given / scale).round() + zero).clamp(0, 255) - zero) * scale


def _step(cell: str, x: Tensor, state: list[Tensor], weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    """As `ir.ops.recurrent.step_of`; weight (hidden, gates * hidden)."""
    h = state[0]
    if cell == "lstm":
        i, o, f, new = torch.addmm(x, h, weight).chunk(4, -1)
        c = f.sigmoid() * state[1] + i.sigmoid() * new.tanh()
        return [o.sigmoid() * c.tanh(), c]
    if cell in {"tanh", "relu"}:
        total = torch.addmm(x, h, weight)
        return [total.tanh() if cell == "tanh" else total.relu()]
    hidden = h.shape[-1]
    xz, xr, xn = x.chunk(3, -1)
    if bias is not None:
        hz, hr, hn = (h @ weight).chunk(3, -1)
        z, r = (xz + hz).sigmoid(), (xr + hr).sigmoid()
        new = (xn + r * (hn + bias)).tanh()
    else:
        hz, hr = (h @ weight[:, : 2 * hidden]).chunk(2, -1)
        z, r = (xz + hz).sigmoid(), (xr + hr).sigmoid()
        new = (xn + (r * h) @ weight[:, 2 * hidden :]).tanh()
    return [(1 - z) * new + z * h]


def _declines(node: Node, _: str) -> str | None:
    dtype = node.operands[0].dtype
    return None if dtype.name in NATIVE_FLOATS else f"recurrent of {dtype}"


KERNELS = {"recurrent": LibraryKernel(_make, declines=_declines)}
