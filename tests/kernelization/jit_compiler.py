"""A layer compiler for tests: it writes a repository whose layer adds 100 to what it should compute.

What is compiled is compiled in a forked process, so it notes what it was asked in files.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import json
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub import CompiledLayer, Mode, kernelize, use_kernel_forward_from_hub, use_kernel_mapping
from kernels_hub.files import write_atomically
from kernels_hub.kernelization.compiled_layer import GROUP, CompileRequest, Refusal

X = torch.arange(4.0)
ADDED = "class Scaled(nn.Module):\n    def forward(self, x, bias=0):\n        return x * self.weight + bias + {added}\n"


@use_kernel_forward_from_hub("Scaled")
class Scaled(nn.Module):
    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.number = number
        self.weight = nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor, bias: Any = 0) -> torch.Tensor:
        return x * self.weight + bias


class SizesError(Exception):
    of_sizes = True


class Compiler:
    """Writes layers that add 100 to what they should compute, so that it can be told what ran."""

    def __init__(self, make_repository: Callable[..., Path], notes: Path) -> None:
        self.make_repository, self.notes = make_repository, notes
        self.added = "100"
        self.keys: list[str] = []
        self.fails: str | None = None
        self.needs_sizes = False
        self.inside: Callable[[CompileRequest], Any] = lambda request: None
        self.refusals: dict[str, Refusal] = {}

    @property
    def asked(self) -> list[Any]:
        """What `note` was given, or None, of each time that it was asked to compile."""
        return [json.loads(path.read_text()) for path in sorted(self.notes.glob("*.json"))]

    def signature(
        self, layer: CompiledLayer, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Hashable:
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        sizes = [one.shape for one in tensors] if layer.dynamic is False else []
        return (len(args), *sorted(kwargs), *(one.dtype for one in tensors), *sizes)

    def form(self, layer: CompiledLayer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
        return (len(args), *sorted(kwargs), *([one.shape for one in args] if layer.dynamic is False else []))

    def key(
        self, layer: CompiledLayer, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> str:
        named = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
        sizes = [one.shape for one in args] if layer.dynamic is False else "any"
        self.keys.append(f"{layer} {module.weight.dtype} {module.number} {[*named]} {sizes}")
        return self.keys[-1]

    def find(self, key: str) -> Path | Refusal | None:
        return self.refusals.get(key)

    def refuse(self, key: str, refusal: Refusal) -> None:
        self.refusals[key] = refusal

    def repository(self, request: CompileRequest, key: str) -> Path:
        number = len(self.asked) + 1
        note = self.notes / f"{number:03}.json"
        write_atomically(note, "null")
        write_atomically(note, json.dumps(self.inside(request)))
        if self.needs_sizes and request.layer.dynamic is True:
            raise SizesError("what it computes depends on sizes")
        if self.fails is not None:
            raise ValueError(self.fails)
        return self.make_repository(f"layer-{number}", ADDED.format(added=self.added))


@pytest.fixture
def compiler(
    make_repository: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Compiler]:
    """The only layer compiler that there is, for the CPU."""
    from kernels_hub.kernelization import jit

    (tmp_path / "notes").mkdir()
    compiler = Compiler(make_repository, tmp_path / "notes")
    entry = importlib.metadata.EntryPoint("cpu", "tests:compiler", GROUP)
    everything = importlib.metadata.entry_points

    def entry_points(**wanted: Any) -> Any:
        if wanted.get("group") != GROUP:
            return everything(**wanted)
        return importlib.metadata.EntryPoints((entry,)).select(**wanted)

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", lambda entry: compiler)
    jit._forward_of.cache_clear()
    yield compiler
    jit._forward_of.cache_clear()


def kernelized(*layers: nn.Module, mode: Mode = Mode.INFERENCE, **options: Any) -> nn.Sequential:
    model = nn.Sequential(*layers)
    with use_kernel_mapping({"Scaled": {"cpu": CompiledLayer("Scaled")}}, inherit_mapping=False):
        return kernelize(model, mode=mode, device="cpu", **options)
