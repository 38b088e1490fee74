"""Layers compiled where they are first called: what `CompiledLayer` in a mapping asks of the compiler, for the CPU.

    key         all that decides the graph -> a digest                          milliseconds, nothing is traced
    repository  the digest is known: its folder
                else trace; the graph, by its text, is known: its folder
                else emit, check against the module and the oracle, build       seconds

Found through the entry point "kernels_hub.layer_compilers" of the name "cpu".
"""

from __future__ import annotations

import functools
import inspect
import logging
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kernels_hub.compiler import layer_store
from kernels_hub.compiler.emitting.caches import LENGTH_AXIS, caches_as_trees, length_hint
from kernels_hub.compiler.emitting.runtime.caches import has_forgotten, is_cache, pairs_of
from kernels_hub.compiler.layer_key import call_key, compiler_digest, digest

if TYPE_CHECKING:
    from torch import nn

    from kernels_hub.compiler.emitting.source import Example, Source
    from kernels_hub.repository.compiled import CompiledLayer, Wanted

_LOGGER = logging.getLogger("kernels_hub")
_LEAST = 2
"""torch.export takes 0 and 1 for special: an example has at least this size in a named dim."""


class CpuCompiler:
    """C++, through `emit_layer`."""

    def key(
        self, layer: CompiledLayer, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> str:
        """See `kernels_hub.repository.compiled.LayerCompiler`."""
        with caches_as_trees():
            return digest(layer.layer_name, layer.ranges, call_key(module, args, kwargs, layer.dims()))

    def has_forms(self, layer: CompiledLayer, cls: type[nn.Module]) -> bool:
        """See `kernels_hub.repository.compiled.HasForms`: where sizes of 1 are fixed, or a cache may be empty."""
        return layer.dims() is True or "past_key_values" in inspect.signature(cls.forward).parameters

    def form(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, ...] | None:
        """See `kernels_hub.repository.compiled.HasForms`.

        How many layers hold something in each cache, and which sizes of tensors are 1, as they then are in the program,
        too. None where a cache holds one token, as its length would be fixed, or less than it was given.
        """
        found = []
        for one in (*args, *kwargs.values()):
            if isinstance(one, torch.Tensor):
                shape = one.shape
                found.append(
                    sum([1 << axis for axis, size in enumerate(shape) if size == 1]) if 1 in shape else 0
                )
            elif is_cache(one):
                pairs = pairs_of(one)
                if pairs is None and has_forgotten(one):
                    return None
                if pairs and pairs[0][0].shape[LENGTH_AXIS] < _LEAST:
                    return None
                found.append(len(pairs or ()))
        return tuple(found)

    def repository(self, wanted: Wanted, key: str) -> Path:
        """See `kernels_hub.repository.compiled.LayerCompiler`. Raises as `emit_layer` does."""
        if (known := layer_store.of_call(key)) is not None:
            return known
        with caches_as_trees():
            source = _traced(wanted)
            name = _graph_key(wanted.layer, source)
            folder = layer_store.of_graph(name) or layer_store.made(
                name, lambda out: _emit(wanted.layer, source, out)
            )
        layer_store.note_call(key, folder)
        return folder


COMPILER = CpuCompiler()


def _traced(wanted: Wanted) -> Source:
    """The graph of the call, and how calls map to it."""
    from kernels_hub.compiler.emitting.source import evaluating, from_module

    example = _example(wanted)
    with evaluating(example.module):
        return from_module(example, wanted.layer.layer_name)


def _example(wanted: Wanted) -> Example:
    """The call as torch.export is to see it."""
    from torch.utils import _pytree as pytree

    from kernels_hub.compiler.emitting.source import Example, resized
    from kernels_hub.compiler.importers.torch_sizes import input_symbols

    dims, module = wanted.layer.dims(), wanted.module
    args, kwargs = pytree.tree_map_only(torch.Tensor, _plain, (wanted.args, dict(wanted.kwargs)))
    if isinstance(dims, bool):
        return Example(module, args, kwargs, _free(module, args, kwargs) if dims else None)
    example = Example(module, args, kwargs, _with_dims(dims, wanted.layer))
    small = {}
    leaves = dict(_leaves(module, args, kwargs))
    for path, names in input_symbols(module, args, kwargs, example.dynamic_shapes).items():
        shape = leaves[path].shape
        sizes = [max(size, _LEAST) if name else size for name, size in zip(names, shape, strict=True)]
        if sizes != list(shape):
            small[path] = sizes
    return resized(example, small) if small else example


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """What a cache holds was made in inference mode, often."""
    return tensor.detach().clone() if tensor.is_inference() else tensor


def _leaves(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    from torch.utils import _pytree as pytree

    from kernels_hub.compiler.importers.torch_trace import paths_of

    return list(zip(paths_of(module, args, kwargs), pytree.tree_leaves((args, dict(kwargs))), strict=True))


def _free(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Every size left to torch.export, which finds out which of them are fixed."""
    from torch.utils import _pytree as pytree

    from kernels_hub.compiler.importers.torch_trace import arguments_of

    length = length_hint()

    def free(leaf: Any, *, cached: bool) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return None
        sizes = {axis: torch.export.Dim.AUTO for axis, size in enumerate(leaf.shape) if size >= _LEAST}
        return sizes | {axis: length for axis in sizes if cached and axis == LENGTH_AXIS}

    return {
        name: pytree.tree_map(functools.partial(free, cached=is_cache(value)), value)
        for name, value in arguments_of(module, args, kwargs)
    }


def _with_dims(spec: Any, layer: CompiledLayer) -> Any:
    """`CompiledLayer.dims()` with torch's dims in the places of names."""
    ranges = {name: (low, high) for name, low, high in layer.ranges}
    dims: dict[str, Any] = {}

    def made(one: Any) -> Any:
        if isinstance(one, str):
            if one not in dims:
                low, high = ranges.get(one, (None, None))
                dims[one] = torch.export.Dim(one) if low is None else torch.export.Dim(one, min=low, max=high)
            return dims[one]
        if isinstance(one, dict):
            return {name: made(inner) for name, inner in one.items()}
        return [made(inner) for inner in one] if isinstance(one, list) else one

    return made(spec)


def _graph_key(layer: CompiledLayer, source: Source) -> str:
    """Of the graph's text, how calls map to it, what it depends on in the module, and this compiler."""
    from kernels_hub import __version__
    from kernels_hub.compiler.emitting.recorded import recorded
    from kernels_hub.compiler.emitting.source import evaluating
    from kernels_hub.compiler.ir.printer import print_graph

    assert source.example is not None
    with evaluating(source.example.module):
        modules = recorded(source.example)
    return digest(
        layer.layer_name, layer.ranges, print_graph(source.graph, data=True), modules, str(source.signature),
        source.arguments, source.result, source.changed, sorted(source.aliases.items()), sorted(source.constants),
        sorted((name, str(source.arrays[name])) for name in source.constants),
        __version__, compiler_digest(), torch.__version__,
    )  # fmt: skip


def _emit(layer: CompiledLayer, traced: Source, out: Path) -> None:
    """Fill a folder with a built repository."""
    from kernels_hub.compiler.emit import emit_layer
    from kernels_hub.compiler.emitting.package import kernel_name
    from kernels_hub.repository.build import build_repository

    started = time.perf_counter()
    source = out / "source"
    emit_layer(
        traced,
        layer_name=layer.layer_name,
        out=source,
        name=f"compiled-{kernel_name(layer.layer_name)}".rstrip("-"),
        triton=False,
        benchmark=False,
        training=False,
    )
    build_repository(source, out)
    (source / "README.md").rename(out / "README.md")
    shutil.rmtree(source)
    _LOGGER.info("%s: compiled in %.1f s", layer, time.perf_counter() - started)
