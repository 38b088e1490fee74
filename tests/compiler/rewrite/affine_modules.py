"""Products and convolutions with scales, shifts and residuals around them, as PyTorch users write them.

Each case is one kernel: scales and shifts are in the weights, everything else is in the epilogue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGE, ROWS = (2, 8, 6, 5), (2, 6, 16)


def conv(i: int = 8, o: int = 8, k: int = 3, **options) -> nn.Module:
    return nn.Conv2d(i, o, k, **({"padding": k // 2} | options))


def linear(i: int = 16, o: int = 12, **options) -> nn.Module:
    return nn.Linear(i, o, **options)


def vector(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape))


def norm(channels: int) -> nn.Module:
    made = nn.BatchNorm2d(channels)
    for tensor in (made.running_mean, made.running_var, made.weight.data, made.bias.data):
        tensor.uniform_(0.5, 1.5)
    return made


@dataclass(frozen=True)
class Case:
    """forward(module, *inputs), the module's parts, and the shapes of the inputs."""

    forward: Callable[..., Tensor]
    parts: Callable[[], dict[str, nn.Module | nn.Parameter]]
    shapes: tuple[tuple[int, ...], ...] = (IMAGE,)


def _conv(forward, *more, **parts) -> Case:
    return Case(
        forward, lambda: {"c": conv()} | {name: make() for name, make in parts.items()}, (IMAGE, *more)
    )


def _linear(forward, *more, o: int = 12, **parts) -> Case:
    return Case(
        forward, lambda: {"l": linear(o=o)} | {name: make() for name, make in parts.items()}, (ROWS, *more)
    )


OUT = (2, 6, 12)
CASES: dict[str, Case] = {
    "conv times a number": _conv(lambda m, x: m.c(x) * 2),
    "a number times conv minus a number": _conv(lambda m, x: 2 * m.c(x) - 1),
    "conv over a number": _conv(lambda m, x: m.c(x) / 3),
    "minus conv times a number": _conv(lambda m, x: -m.c(x) * 0.5),
    "conv of a multiple": _conv(lambda m, x: m.c(x * 2)),
    "conv without padding of a multiple plus a number": Case(
        lambda m, x: m.c(x * 2 + 1), lambda: {"c": conv(padding=0)}
    ),
    "conv of a normalized image": Case(
        lambda m, x: m.c((x - m.mean) / m.deviation),
        lambda: {
            "c": conv(padding=0),
            "mean": vector(1, 8, 1, 1),
            "deviation": nn.Parameter(torch.rand(1, 8, 1, 1) + 1),
        },
    ),
    "conv of a transposed multiple": _conv(lambda m, x: m.c((x * 2).permute(0, 1, 3, 2))),
    "norm of a multiple": _conv(lambda m, x: m.n(m.c(x) * 2), n=lambda: norm(8)),
    "half of a rectified norm": _conv(lambda m, x: F.relu(m.n(m.c(x))) * 0.5, n=lambda: norm(8)),
    "bounded multiple plus a number": _conv(lambda m, x: F.relu6(m.c(x) * 2) + 1),
    "multiple of a bound": _conv(lambda m, x: m.c(x).clamp(-1, 6) * 2),
    "channels last, scaled and shifted": _conv(
        lambda m, x: m.c(x).permute(0, 2, 3, 1) * m.g + m.b, g=lambda: vector(8), b=lambda: vector(8)
    ),
    "flat pixels, scaled and shifted": _conv(
        lambda m, x: m.c(x).flatten(2).transpose(1, 2) * m.g + m.b, g=lambda: vector(8), b=lambda: vector(8)
    ),
    "reshaped, times a parameter": _conv(
        lambda m, x: m.c(x).reshape(-1, 4, 2, 30) * m.g, g=lambda: vector(1)
    ),
    "grouped and depthwise": Case(
        lambda m, x, r: m.c(x) * 2 + r, lambda: {"c": conv(groups=8)}, (IMAGE, IMAGE)
    ),
    "concat of convs, scaled": _conv(
        lambda m, x: torch.cat([m.c(x), m.d(x)], 1) * m.g + m.b,
        d=conv,
        g=lambda: vector(16, 1, 1),
        b=lambda: vector(16, 1, 1),
    ),
    "norm of a concat of rectified convs": _conv(
        lambda m, x: F.relu(m.n(torch.cat([m.c(x), m.d(x)], 1))), d=conv, n=lambda: norm(16)
    ),
    "residual is the input": _conv(lambda m, x: m.c(x) + x),
    "rectified sum with a residual": _conv(lambda m, x, r: F.relu(m.c(x) + r), IMAGE),
    "norm, residual, bound, multiple": _conv(
        lambda m, x, r: F.relu(m.n(m.c(x)) + r) * 2, IMAGE, n=lambda: norm(8)
    ),
    "multiple of a residual minus conv": _conv(lambda m, x, r: r * 2 - m.c(x), IMAGE),
    "residual of one number a channel": _conv(
        lambda m, x, r: m.c(x) * m.g + r, (2, 8, 1, 1), g=lambda: vector(8, 1, 1)
    ),
    "residual that lies channels last": _conv(lambda m, x, r: m.c(x).permute(0, 2, 3, 1) + r, (2, 6, 5, 8)),
    "sequence": Case(
        lambda m, x, r: m.c(x) * m.g + m.b + r,
        lambda: {"c": nn.Conv1d(8, 8, 3, padding=1), "g": vector(8, 1), "b": vector(8, 1)},
        ((2, 8, 9), (2, 8, 9)),
    ),
    "volume": Case(lambda m, x: F.relu(m.c(x) * 2), lambda: {"c": nn.Conv3d(4, 4, 3)}, ((2, 4, 5, 4, 4),)),
    "linear plus a vector, times two plus one": _linear(
        lambda m, x: (m.l(x) + m.b) * 2 + 1, b=lambda: vector(12)
    ),
    "linear of a multiple plus a number": _linear(lambda m, x: m.l(x * 2 + 1)),
    "linear of a quotient": _linear(lambda m, x: m.l(x / 8)),
    "linear of a reshaped multiple": Case(
        lambda m, x: m.l((x * m.g).flatten(1)), lambda: {"l": linear(96), "g": vector(16)}, (ROWS,)
    ),
    "scaled layer plus its input": _linear(lambda m, x: x + m.g * m.l(x), o=16, g=lambda: vector(16)),
    "mean of a layer and its input": _linear(lambda m, x: x * 0.5 + m.l(x) * 0.5, o=16),
    "activation, scale and two residuals": _linear(
        lambda m, x, r, q: F.gelu(m.l(x)) * m.g + r + q, OUT, OUT, g=lambda: vector(12)
    ),
    "transposed plus a residual": _linear(lambda m, x, r: m.l(x).transpose(1, 2) * 2 + r, (2, 12, 6)),
    "gated by an input": _linear(lambda m, x, r: torch.sigmoid(m.l(x) + r) * r, OUT),
    "masked rows": _linear(lambda m, x, r: m.l(x) * 2 * r, (2, 6, 1)),
    "part of the columns": _linear(lambda m, x: (m.l(x) * m.g).chunk(2, -1)[0] + 1, g=lambda: vector(12)),
    "products of two inputs": Case(lambda m, x, y: x @ y.transpose(1, 2) / 4 + 1, dict, (ROWS, ROWS)),
}


class Module(nn.Module):
    """One case."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        for name, part in case.parts().items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.case.forward(self, *inputs)


class Together(nn.Module):
    """All of them, side by side: each has inputs of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cases = nn.ModuleList(Module(case) for case in CASES.values())

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        left = list(inputs)
        return [one(*(left.pop(0) for _ in one.case.shapes)) for one in self.cases]


def together() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The module and inputs, some elements of which are -0.0."""
    torch.manual_seed(1)
    inputs = tuple(torch.randn(shape) for case in CASES.values() for shape in case.shapes)
    for one in inputs:
        one.view(-1)[::7] = -0.0
    return Together().eval(), inputs
