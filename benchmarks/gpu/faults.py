"""Slice 7: what goes wrong on a GPU, or runs in unusual ways: memory that is out, streams, threads, capture."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.graphs import mlp
from benchmarks.gpu.target import Case, Result, Target, close
from kernels_hub import Mode, kernelize
from kernels_hub.compiler import compile as compile_


def cases(target: Target) -> Iterator[Case]:
    """Each after the other; a kernelized and a compiled module take part in all."""
    for check in (out_of_memory, other_stream, threads, captured, empty, strided):
        yield Case(check.__name__.replace("_", " "), partial(check, target))


def subjects(target: Target) -> tuple[dict[str, Callable[..., Any]], Callable[..., Any], torch.Tensor]:
    """(a kernelized module and a compiled graph, the original, an input)"""
    torch.manual_seed(0)
    module, (x,) = mlp(target)
    module, x = module.eval().to(target.device), x.to(target.device)
    kernelized = mlp(target)[0].eval().to(target.device)
    kernelized.load_state_dict(module.state_dict())
    return (
        {
            "kernelized": kernelize(kernelized, mode=Mode.INFERENCE),
            "compiled": compile_((module, (x,)), target.device),
        },
        module,
        x,
    )


@torch.inference_mode()
def right(target: Target, inputs: Callable[[torch.Tensor], torch.Tensor] = lambda x: x) -> Result:
    """Differences from the original."""
    ways, module, x = subjects(target)
    given = inputs(x)
    return {name: close(way(given), module(given), torch.float32) for name, way in ways.items()}


def out_of_memory(target: Target) -> Result:
    """An allocation that cannot be had is an error, and what comes after it is right."""
    try:
        torch.empty(1 << 46, device=target.device)
    except RuntimeError as error:
        return {"said": str(error).splitlines()[0][:200], **right(target)}
    raise AssertionError("64 TiB were allocated")


def other_stream(target: Target) -> Result:
    """Work that is queued on a stream of one's own is done there."""
    if target.rehearsal:
        return right(target)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = right(target)
    stream.synchronize()
    return found


@torch.inference_mode()
def threads(target: Target) -> Result:
    """Four threads call at once, with numbers of their own."""
    ways, module, x = subjects(target)
    worst: dict[str, float] = {}
    for name, way in ways.items():
        found: list[Any] = [None] * 4

        def call(place: int, way: Callable[..., Any] = way, found: list[Any] = found) -> None:
            with torch.inference_mode():
                for _ in range(target.sized(50, 2)):
                    found[place] = way(x * (place + 1))
                target.synchronize()

        running = [threading.Thread(target=call, args=(place,)) for place in range(4)]
        for one in running:
            one.start()
        for one in running:
            one.join()
        worst[name] = max(close(found[place], module(x * (place + 1)), torch.float32) for place in range(4))
    return worst


@torch.inference_mode()
def captured(target: Target) -> Result:
    """PyTorch captures the calls in a CUDA graph of its own, and replays it on other numbers."""
    ways, module, x = subjects(target)
    differences = {}
    for name, way in ways.items():
        held = x.clone()
        for _ in range(3):
            way(held)
        target.synchronize()
        graph = None if target.rehearsal else torch.cuda.CUDAGraph()
        with contextlib.nullcontext() if graph is None else torch.cuda.graph(graph):
            result = way(held)
        held.copy_(x * 2)
        if graph is None:
            result = way(held)
        else:
            graph.replay()
        target.synchronize()
        differences[name] = close(result, module(x * 2), torch.float32)
    return differences


def empty(target: Target) -> Result:
    """No rows, for the kernelized module; a compiled graph is for sizes of its own."""
    ways, module, x = subjects(target)
    with torch.inference_mode():
        return {"kernelized": close(ways["kernelized"](x[:0]), module(x[:0]), torch.float32)}


def strided(target: Target) -> Result:
    """An input that is not contiguous."""
    return right(target, lambda x: torch.stack((x, x), -1)[..., 0])
