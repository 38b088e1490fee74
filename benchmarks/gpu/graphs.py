"""Slice 4: compiled graphs, called kernel by kernel and replayed as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.gpu.target import Case, Result, Target, differences_of
from kernels_hub.compiler import compile as compile_


class Block(nn.Module):
    """A block of a transformer: norm, attention, norm, feed-forward."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(size), nn.LayerNorm(size)
        self.project, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            one.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for one in self.project(self.before(x)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        found: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.after(x))))
        return found


def mlp(target: Target) -> tuple[nn.Module, tuple[Any, ...]]:
    size = target.sized(1024, 16)
    module = nn.Sequential(
        nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size)
    )
    return module, (torch.randn(target.sized(256, 3), size),)


def block(target: Target) -> tuple[nn.Module, tuple[Any, ...]]:
    size = target.sized(1024, 32)
    return Block(size, size // 16), (torch.randn(2, target.sized(512, 8), size),)


def convolutions(target: Target) -> tuple[nn.Module, tuple[Any, ...]]:
    width = target.sized(128, 4)
    module = nn.Sequential(
        nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 1)
    )
    return module, (torch.randn(target.sized(8, 1), width, target.sized(56, 6), target.sized(56, 6)),)


GRAPHS: dict[str, Callable[[Target], tuple[nn.Module, tuple[Any, ...]]]] = {
    "mlp": mlp,
    "block": block,
    "convolutions": convolutions,
}


def cases(target: Target) -> Iterator[Case]:
    """Each graph in each dtype."""
    for name in GRAPHS:
        for dtype in target.dtypes:
            yield Case(f"{name}, {dtype}", partial(run, target, name, dtype))


def made(target: Target, name: str, dtype: torch.dtype) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A graph's module with the same weights each time, and its inputs, on the target."""
    torch.manual_seed(0)
    module, args = GRAPHS[name](target)
    inputs = tuple(one.to(device=target.device, dtype=dtype) for one in args)
    return module.to(device=target.device, dtype=dtype).eval(), inputs


def run(target: Target, name: str, dtype: torch.dtype) -> Result:
    """Ratios over eager of a compiled graph, with and without a CUDA graph, and of torch.compile."""
    module, inputs = made(target, name, dtype)
    ways: dict[str, Callable[..., Any]] = {"eager": module}
    with torch.inference_mode():
        ways["compile()"] = compiled = compile_((module, inputs), target.device)
        if not target.rehearsal:
            ways["compile(), CUDA graph"] = compiled.plan.capture(*inputs)
        if target.with_peers:
            ways["torch.compile"] = target.compiled(module)
            ways["torch.compile, CUDA graph"] = torch.compile(module, mode="reduce-overhead")
        results = {name: way(*inputs) for name, way in ways.items()}
        differences = differences_of(results, "compile()", dtype)
        found = target.in_turn({name: partial(way, *inputs) for name, way in ways.items()})
    return {**found, "difference": differences, "engines": list(dict.fromkeys(compiled.plan.engines))}
