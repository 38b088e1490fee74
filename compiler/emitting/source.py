"""What is compiled: a module with example arguments, one layer of a model, or an ONNX file.

Parameters have no arrays in the graph that comes out: nothing can be computed of them before the layer runs.
"""

from __future__ import annotations

import inspect
import itertools
import keyword
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernels_hub.compiler.emitting.caches import fresh
from kernels_hub.compiler.emitting.runtime.caches import is_cache, pairs_of
from kernels_hub.compiler.emitting.runtime.parts import Cache, Tensor
from kernels_hub.compiler.emitting.traced_forward import traced_forward
from kernels_hub.compiler.errors import CompilerError, ImportFailure
from kernels_hub.compiler.importers.onnx import import_onnx_program
from kernels_hub.compiler.importers.torch_export import import_torch_program
from kernels_hub.compiler.importers.torch_sizes import input_symbols
from kernels_hub.compiler.importers.torch_trace import arguments_of, paths_of
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.escaping import Identifier

_LITERALS = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Example:
    """A module and the arguments of a call. dynamic_shapes: as torch.export takes them."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None

    def run(self) -> Any:
        """The module's result."""
        args, kwargs = self.call()
        with torch.no_grad():
            return self.module(*args, **kwargs)

    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of one call, which may change caches among them."""
        args, kwargs = fresh((self.args, dict(self.kwargs)))
        return args, kwargs


@dataclass(frozen=True)
class Source:
    """A graph, and how a call of the layer maps to it. `example`: None of an ONNX file, which has `arrays` instead.

    graph: its parameters have no arrays. arguments, result: trees with a Tensor for each input, or output, of the
    graph. changed: see `Table`. aliases: parameter -> other names of the same tensor.
    """

    graph: Graph
    signature: inspect.Signature
    arguments: Mapping[str, Any]
    result: Any
    changed: Mapping[str, Mapping[int, tuple[Tensor, Tensor]]] = field(default_factory=dict)
    example: Example | None = None
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    arrays: Mapping[str, Any] = field(default_factory=dict)
    constants: frozenset[str] = frozenset()
    """Parameters of the graph that no other module has: tensors that tracing found in the code."""

    @property
    def takes_caches(self) -> bool:
        """Whether arguments are key-value caches, which a call changes."""
        return any(isinstance(one, Cache) for one in self.arguments.values())

    def arguments_of(self, *kinds: inspect._ParameterKind) -> tuple[str, ...]:
        """Names of the arguments of some kinds."""
        return tuple(name for name, one in self.signature.parameters.items() if one.kind in kinds)


def from_module(example: Example, name: str) -> Source:
    """Trace a module. Raises ImportFailure with all that cannot be imported."""
    module = example.module
    signature = _signature(module)
    _arguments(
        example, signature, defaultdict(lambda: Tensor(0))
    )  # before any is traced with, which may change it
    given, shapes = _exposed(example)
    with traced_forward(module, given, example.args, example.kwargs) as call, warnings.catch_warnings():
        # torch.export, of its own copies.
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
        program = import_torch_program(module, (), given, dynamic_shapes=shapes, name=name)
    graph = program.graph
    names, constants = _aliases(module, graph), _constants(module, graph)
    arguments = _arguments(
        example, signature, {path: Tensor(place) for place, path in enumerate(graph.inputs)}
    )
    result, changed = call.of(program)
    arrays = dict(graph.weights)
    graph.weights.clear()
    return Source(graph, signature, arguments, result, changed, example, names, arrays, constants)


def from_onnx(path: Path, name: str, dims: Mapping[str, Any] | None = None) -> Source:
    """Import an ONNX file. Raises OnnxImportError with all nodes that cannot be imported."""
    program = import_onnx_program(path, dims=dims)
    graph = program.graph
    graph.name = name
    kinds = inspect.Parameter
    arguments = dict(zip(_identifiers(graph.inputs), map(Tensor, itertools.count()), strict=False))
    signature = inspect.Signature([kinds(one, kinds.POSITIONAL_OR_KEYWORD) for one in arguments])
    places = {one: Tensor(place) for place, one in enumerate(graph.outputs)}
    result: dict[str, Any] = {}
    for output, of in program.outputs.items():
        result[output] = (
            None if of is None else places[of] if isinstance(of, str) else [places[one] for one in of]
        )
    arrays = dict(graph.weights)
    graph.weights.clear()
    return Source(graph, signature, arguments, result, arrays=arrays)


def layer_of(example: Example, path: str) -> Example:
    """One module of a model, with the arguments that it gets when the model runs on the example.

    Its dynamic dims are those that change with the model's. Raises CompilerError where there is no such module, or
    the model does not call it.
    """
    modules = dict(example.module.named_modules())
    if path not in modules:
        near = [one for one in modules if one.rpartition(".")[2] == path.rpartition(".")[2]] or [*modules][1:]
        raise CompilerError(
            f"{type(example.module).__name__} has no module {path!r}; it has {', '.join(near[:6]) or 'none inside'}"
        )
    layer = modules[path]
    args, kwargs = _captured(example, layer, path)
    names: dict[str, int] = {}
    for found in input_symbols(example.module, example.args, example.kwargs, example.dynamic_shapes).values():
        names.update((one, 0) for one in found if one)
    shapes = [_dynamic(example, layer, path, name, (args, kwargs)) for name in names]
    merged = [
        dict(itertools.chain(*(one.items() for one in of_leaf))) for of_leaf in zip(*shapes, strict=True)
    ]
    if not merged:
        return Example(layer, args, kwargs)
    spec = pytree.tree_structure((args, kwargs))
    of_args, of_kwargs = pytree.tree_unflatten([one or None for one in merged], spec)
    by_name = inspect.signature(layer.forward).bind(*of_args, **of_kwargs).arguments
    return Example(layer, args, kwargs, dict(by_name))


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The module in eval mode, as it was afterwards."""
    before = [(one, one.training) for one in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for one, training in before:
            one.training = training


def resized(example: Example, sizes: Mapping[str, Sequence[int]], seed: int = 0) -> Example:
    """The example with inputs of other shapes, by path. What is added repeats what was there, with seeded noise on
    floats that take many values: masks stay masks, and indices in range."""
    leaves, spec = pytree.tree_flatten((example.args, dict(example.kwargs)))
    paths = paths_of(example.module, example.args, example.kwargs)
    random = torch.Generator().manual_seed(seed)
    made = [
        _wrapped(leaf, sizes[path], random) if path in sizes and isinstance(leaf, torch.Tensor) else leaf
        for path, leaf in zip(paths, leaves, strict=True)
    ]
    args, kwargs = pytree.tree_unflatten(made, spec)
    return Example(example.module, tuple(args), kwargs, example.dynamic_shapes)


_FEW = 4


def _wrapped(tensor: torch.Tensor, shape: Sequence[int], random: torch.Generator) -> torch.Tensor:
    result = tensor.detach()
    for axis, size in enumerate(shape):
        result = result.index_select(axis, torch.arange(size) % max(1, result.shape[axis]))
    if result.is_floating_point() and len(tensor.detach().unique()) > _FEW:
        noise = torch.randn(result.shape, generator=random, dtype=torch.float32)
        result = result * (1 + 0.3 * noise).to(result.dtype)
    return result.contiguous()


def _captured(example: Example, layer: nn.Module, path: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    hook = layer.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append(fresh((args, dict(kwargs)))), with_kwargs=True
    )
    try:
        example.run()
    except Exception as error:
        raise CompilerError(
            f"the model raised {type(error).__name__} on its example arguments: {error}"
        ) from error
    finally:
        hook.remove()
    if not calls:
        raise CompilerError(f"the model does not call its {path} on the example arguments")
    return calls[0]


def _dynamic(example: Example, layer: nn.Module, path: str, name: str, known: Any) -> list[dict[int, Any]]:
    """Of each leaf of a layer's arguments: its dims that change when one dim of the model's does."""
    symbols = input_symbols(example.module, example.args, example.kwargs, example.dynamic_shapes)
    leaves = dict(zip(paths_of(example.module, example.args, example.kwargs),
                      pytree.tree_leaves((example.args, dict(example.kwargs))), strict=True))  # fmt: skip
    size = next(leaves[one].shape[dims.index(name)] for one, dims in symbols.items() if name in dims)
    other = size - 1 if size > 2 else size + 1  # 1 is special to torch.export
    shapes = {
        one: [other if dim == name else leaves[one].shape[axis] for axis, dim in enumerate(dims)]
        for one, dims in symbols.items()
    }
    before, after = (
        pytree.tree_leaves(known),
        pytree.tree_leaves(_captured(resized(example, shapes), layer, path)),
    )
    found: list[dict[int, Any]] = []
    dim, extra = torch.export.Dim(name), itertools.count(1)
    for one, changed in zip(before, after, strict=True):
        axes: dict[int, Any] = {}
        if isinstance(one, torch.Tensor):
            for axis, (first, second) in enumerate(zip(one.shape, changed.shape, strict=True)):
                if first != second:
                    same = (first, second) == (size, other)
                    axes[axis] = dim if same else torch.export.Dim(f"{name}_{next(extra)}")
        found.append(axes)
    return found


def _exposed(example: Example) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The arguments that hold tensors, by name, and their dynamic dims: all that torch.export is to see."""
    named = arguments_of(example.module, example.args, example.kwargs)
    given = {
        name: value
        for name, value in named
        if any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))
    }
    shapes = example.dynamic_shapes
    if not shapes:
        return given, None
    if not isinstance(shapes, Mapping):
        flat = {name: spec for (name, _), spec in zip(named, shapes, strict=False)}
    else:
        flat = dict(shapes)
        for name, one in inspect.signature(type(example.module).forward).parameters.items():
            if one.kind is inspect.Parameter.VAR_KEYWORD and isinstance(flat.get(name), Mapping):
                flat |= flat.pop(name)
            elif one.kind is inspect.Parameter.VAR_POSITIONAL and isinstance(flat.get(name), (tuple, list)):
                flat |= {f"{name}_{place}": spec for place, spec in enumerate(flat.pop(name))}
    if unknown := sorted(flat.keys() - {name for name, _ in named}):
        raise CompilerError(
            f"dynamic shapes are given for {unknown[0]!r}; the arguments are {', '.join(name for name, _ in named)}"
        )
    return given, {name: flat.get(name) for name in given}


def _signature(module: nn.Module) -> inspect.Signature:
    """Of its class's forward, without self and annotations. Raises ImportFailure for defaults that are no literals."""
    signature = inspect.signature(type(module).forward)
    parameters = list(signature.parameters.values())[1:]
    for one in parameters:
        if one.default is not inspect.Parameter.empty and not _is_literal(one.default):
            raise ImportFailure(
                f"{type(module).__name__}.forward: the default of {one.name} is a {type(one.default).__name__}; "
                "what is emitted can state numbers, strings, None, and tuples of them"
            )
    return inspect.Signature([one.replace(annotation=inspect.Parameter.empty) for one in parameters])


def _is_literal(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_literal, value))
    return type(value) in _LITERALS


def _arguments(
    example: Example, signature: inspect.Signature, places: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Raises ImportFailure for arguments that tables cannot state."""
    bound = signature.bind(*example.args, **example.kwargs)
    bound.apply_defaults()
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if is_cache(value):
            found[name] = _cache(value, name, places)
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            found[name] = tuple(_tree(one, f"{name}_{place}", places) for place, one in enumerate(value))
        elif kind is inspect.Parameter.VAR_KEYWORD:
            found[name] = {key: _tree(one, key, places) for key, one in value.items()}
        else:
            found[name] = _tree(value, name, places)
    return found


def _tree(value: Any, path: str, places: Mapping[str, Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return places[path]
    if type(value) in (tuple, list):
        return type(value)(_tree(one, f"{path}.{place}", places) for place, one in enumerate(value))
    if type(value) is dict:
        return {key: _tree(one, f"{path}.{key}", places) for key, one in value.items()}
    if _is_literal(value):
        return value
    raise ImportFailure(
        f"argument {path} is a {type(value).__name__}; "
        "a layer is compiled for tensors, literals, tuples, lists and dicts, and for arguments that are a DynamicCache "
        "of transformers"
    )


def _cache(value: Any, path: str, places: Mapping[str, Tensor]) -> Cache:
    count = len(pairs_of(value) or ())
    return Cache(tuple((places[f"{path}.{one}.0"], places[f"{path}.{one}.1"]) for one in range(count)))


def _state(module: nn.Module) -> dict[str, torch.Tensor]:
    named = itertools.chain(
        module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
    )
    return dict(named)


def _aliases(module: nn.Module, graph: Graph) -> dict[str, tuple[str, ...]]:
    groups: dict[Any, list[str]] = {}
    for name, tensor in _state(module).items():
        if tensor.numel():
            groups.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride()), []).append(name)
    found = {}
    for names in groups.values():
        if len(names) > 1:
            for name in names:
                if name in graph.parameters:
                    found[name] = tuple(one for one in names if one != name)
    return found


def _constants(module: nn.Module, graph: Graph) -> frozenset[str]:
    return frozenset(set(graph.parameters) - set(_state(module)))


def _identifiers(names: Iterable[str]) -> list[str]:
    """Names as arguments of a function, each told from the others, and from what its text names."""
    found: list[str] = []
    for name in names:
        plain = name.isascii() and name.isidentifier() and len(name) <= _LONGEST_ARGUMENT
        wanted = name if plain else str(Identifier(name))
        if not wanted.isidentifier() or keyword.iskeyword(wanted) or wanted in _NAMED:
            wanted = f"_{wanted}"
        one = next(
            text
            for text in itertools.chain([wanted], (f"{wanted}_{n}" for n in itertools.count(2)))
            if text not in found
        )
        found.append(one)
    return found


_LONGEST_ARGUMENT = 64
_NAMED = frozenset({"self", "LAYER", "Any", "nn"})
"""What generated methods use beside their arguments."""
