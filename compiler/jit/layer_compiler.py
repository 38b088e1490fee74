"""Compiles layers at their first call, for the CPU: what `CompiledLayer` in a mapping asks of the compiler.

    key         all that decides the graph -> a digest                          milliseconds, nothing is traced
    repository  the digest is known: its folder
                else trace; the graph, by its text, is known: its folder
                else emit, check against the module and the oracle, build       seconds

Found through the entry point "kernels_hub.layer_compilers" of the name "cpu".
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import shutil
import time
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kernels_hub.compiler.errors import (
    BuildError,
    CompilerError,
    EngineError,
    ImportFailure,
    OriginalRaisesError,
)
from kernels_hub.compiler.export.caches import LENGTH_AXIS, caches_as_trees, dims_of
from kernels_hub.compiler.jit import store as layer_store
from kernels_hub.compiler.jit.key import call_keys
from kernels_hub.compiler.jit.signature import LEAST, call_form, call_signature, is_image, takes_images
from kernels_hub.compiler.plan.compiler_stamp import compiler_digest, digest
from kernels_hub.compiler.runtime.caches import is_cache
from kernels_hub.compiler.runtime.parts import Values
from kernels_hub.cxx_compiler import find_compiler
from kernels_hub.kernelization.compiled_layer import Arguments, Keywords, Refusal

if TYPE_CHECKING:
    from torch import nn

    from kernels_hub.compiler.export.source import Example, Source
    from kernels_hub.kernelization.compiled_layer import CompiledLayer, CompileRequest

_LOGGER = logging.getLogger(__name__)


class CpuCompiler:
    """C++, or bytecode without a compiler, through `emit_layer`."""

    def key(self, layer: CompiledLayer, module: nn.Module, args: Arguments, kwargs: Keywords) -> str:
        """See `kernels_hub.kernelization.compiled_layer.LayerCompiler`."""
        with caches_as_trees():
            keys = call_keys(module, args, kwargs, layer.dims())
            of_call, of_kind = (digest(layer.layer_name, layer.ranges, _engine(), key) for key in keys)
            if names := layer_store.valued(of_call):
                of_call = digest(of_call, _held(names, module, args, kwargs))
            return f"{of_call}-{of_kind}"

    def signature(
        self, layer: CompiledLayer, module: nn.Module, args: Arguments, kwargs: Keywords
    ) -> Hashable | None:
        """See `kernels_hub.kernelization.compiled_layer.LayerCompiler`: see `jit.signature`."""
        return call_signature(layer.dynamic, args, kwargs, images=takes_images(module))

    def form(self, layer: CompiledLayer, args: Arguments, kwargs: Keywords) -> Hashable | None:
        """See `kernels_hub.kernelization.compiled_layer.LayerCompiler`: see `jit.signature`."""
        return call_form(layer.dynamic, args, kwargs)

    def find(self, key: str) -> Path | Refusal | None:
        """See `kernels_hub.kernelization.compiled_layer.LayerCompiler`."""
        layer_store.keep_private_folders()
        found = layer_store.of_call(key)
        if found is None and (refusal := layer_store.refusal_of(key)) is not None:
            return Refusal(*refusal)
        if found is None:
            compiler_digest()  # which each of the processes that compile would work out anew
        return found

    def refuse(self, key: str, refusal: Refusal) -> None:
        """See `kernels_hub.kernelization.compiled_layer.LayerCompiler`."""
        layer_store.note_refusal(key, dataclasses.asdict(refusal))

    def repository(self, request: CompileRequest, key: str) -> Path:
        """See `kernels_hub.kernelization.compiled_layer.LayerCompiler`. Raises as `emit_layer` does.

        What the graph or the module is the reason for is remembered; what the machine is, such as a full disk, is not.
        """
        try:
            return self._repository(request, key)
        except BuildError:
            raise
        except CompilerError as error:
            if isinstance(error, (ImportFailure, OriginalRaisesError)) and _has_cache(request):
                error.of_sizes = False  # its lengths are others at every call
            self.refuse(key, Refusal.of(error))
            raise

    def _repository(self, request: CompileRequest, key: str) -> Path:
        if (known := layer_store.of_call(key)) is not None:
            return known
        with caches_as_trees():
            source = _recorded(_traced(request))
            name = _graph_key(request.layer, source)
            try:
                folder = layer_store.of_graph(name) or layer_store.made(
                    name, lambda out: _emit(request.layer, source, out)
                )
            except CompilerError as error:
                if source.asks_for_values and isinstance(error, (EngineError, ImportFailure)):
                    error.of_sizes = True
                raise
        if (names := _valued(source)) and not layer_store.valued(key):
            layer_store.note_valued(key, folder, names)
            key = self.key(request.layer, request.module, request.args, request.kwargs)
        layer_store.note_call(key, folder)
        return folder


COMPILER = CpuCompiler()


def _traced(request: CompileRequest) -> Source:
    """The graph of the call, and how calls map to it."""
    from kernels_hub.compiler.export.by_values import imported
    from kernels_hub.compiler.export.source import evaluating
    from kernels_hub.compiler.importers.padded_encoders import encoders_without_gradients
    from kernels_hub.compiler.importers.recurrent_calls import recurrent_layers_whole
    from kernels_hub.compiler.importers.torch_precheck import refuse_early

    refuse_early(request.module, request.args, request.kwargs, request.layer.layer_name)
    example = _example(request)
    with evaluating(example.module), recurrent_layers_whole(), encoders_without_gradients():
        return imported(example, request.layer.layer_name, may_fix=request.layer.dims() is True)


def _valued(source: Source) -> list[str]:
    """Names of the arguments whose values a program is of."""
    named = {**source.arguments}
    for name in source.arguments_of(inspect.Parameter.VAR_KEYWORD):
        named |= named.pop(name, {})
    return [name for name, one in named.items() if isinstance(one, Values)]


def _held(names: Sequence[str], module: nn.Module, args: Arguments, kwargs: Keywords) -> list[object]:
    """What arguments hold that are small tensors of whole numbers."""
    from kernels_hub.compiler.importers.known_values import is_small
    from kernels_hub.compiler.importers.torch_trace import arguments_of

    given = dict(arguments_of(module, args, kwargs))
    found = [given.get(name) for name in names]
    return [one.tolist() if isinstance(one, torch.Tensor) and is_small(one) else None for one in found]


def _has_cache(request: CompileRequest) -> bool:
    from torch.utils import _pytree as pytree

    return any(map(is_cache, pytree.tree_leaves((request.args, dict(request.kwargs)), is_leaf=is_cache)))


def _example(request: CompileRequest) -> Example:
    """The call as torch.export is to see it."""
    from torch.utils import _pytree as pytree

    from kernels_hub.compiler.export.source import Example, resized
    from kernels_hub.compiler.importers.torch_sizes import input_symbols

    dims, module = request.layer.dims(), request.module
    args, kwargs = pytree.tree_map_only(torch.Tensor, _plain, (request.args, dict(request.kwargs)))
    if isinstance(dims, bool):
        return Example(module, args, kwargs, _free(module, args, kwargs) if dims else None)
    example = Example(module, args, kwargs, _with_dims(dims, request.layer))
    small = {}
    leaves = dict(_leaves(module, args, kwargs))
    for path, names in input_symbols(module, args, kwargs, example.dynamic_shapes).items():
        shape = leaves[path].shape
        sizes = [max(size, LEAST) if name else size for name, size in zip(names, shape, strict=True)]
        if sizes != list(shape):
            small[path] = sizes
    return resized(example, small) if small else example


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """What a cache holds was made in inference mode, often."""
    return tensor.detach().clone() if tensor.is_inference() else tensor


def _leaves(module: nn.Module, args: Arguments, kwargs: Keywords) -> list[tuple[str, Any]]:
    from torch.utils import _pytree as pytree

    from kernels_hub.compiler.importers.torch_trace import paths_of

    return list(zip(paths_of(module, args, kwargs), pytree.tree_leaves((args, dict(kwargs))), strict=True))


def _free(module: nn.Module, args: Arguments, kwargs: Keywords) -> dict[str, Any]:
    """Every size left to torch.export, which finds out which of them are fixed; of images, the batch alone."""
    from kernels_hub.compiler.importers.torch_trace import arguments_of

    images = takes_images(module)
    return {name: _free_dims(value, images=images) for name, value in arguments_of(module, args, kwargs)}


def _free_dims(value: Any, *, images: bool) -> Any:
    from torch.utils import _pytree as pytree

    def free(tensor: torch.Tensor, length: Any = None) -> dict[int, Any]:
        fixed = is_image(tensor, images)
        axes = [axis for axis, size in enumerate(tensor.shape) if size >= LEAST and not (axis and fixed)]
        auto = dict.fromkeys(axes, torch.export.Dim.AUTO)
        return auto | ({LENGTH_AXIS: length} if length is not None and LENGTH_AXIS in auto else {})

    if isinstance(value, torch.Tensor):
        return free(value)
    if is_cache(value):
        return dims_of(value, free)
    if isinstance(value, dict) and type(value) is dict:
        return {name: _free_dims(one, images=images) for name, one in value.items()}
    if type(value) in pytree.SUPPORTED_NODES:
        found = [
            _free_dims(one, images=images) for one in pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)[0]
        ]
        return tuple(found) if type(value) is tuple else found
    return None


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


def _recorded(source: Source) -> Source:
    """With what it depends on in the module."""
    from kernels_hub.compiler.export.recorded_attributes import recorded
    from kernels_hub.compiler.export.source import evaluating

    assert source.example is not None
    with evaluating(source.example.module):
        return dataclasses.replace(
            source, modules=recorded(source.example, by_layout=source.by_layout, remembered=source.remembered)
        )


def _graph_key(layer: CompiledLayer, source: Source) -> str:
    """Of the graph's text, how calls map to it, what it depends on in the module, and this compiler."""
    from kernels_hub.compiler.ir.printer import print_graph
    from kernels_hub.version import __version__

    return digest(
        layer.layer_name, layer.ranges, _engine(), print_graph(source.graph, data=True), source.modules,
        str(source.signature), source.arguments, source.result, source.changed, source.views, source.assertions,
        sorted(source.aliases.items()),
        sorted(source.constants),
        sorted((name, str(source.arrays[name])) for name in source.constants),
        __version__, compiler_digest(), torch.__version__,
    )  # fmt: skip


def _engine() -> str:
    """What checks and runs a layer that is compiled now: nothing that only bytecode was checked of is built later."""
    return "bytecode" if find_compiler() is None else "cpp"


def _emit(layer: CompiledLayer, traced: Source, out: Path) -> None:
    """Fill a folder with a built repository."""
    from kernels_hub.compiler.export.emit_layer import emit_layer
    from kernels_hub.compiler.export.package import kernel_name
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
        bytecode=_engine() == "bytecode",
    )
    build_repository(source, out)
    (source / "README.md").rename(out / "README.md")
    shutil.rmtree(source)
    _LOGGER.info("%s: compiled in %.1f s", layer, time.perf_counter() - started)
