"""What is compiled: a module with example arguments, one layer of a model, or an ONNX file.

A program that torch.export made before: `exported_source`.

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
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernels_hub.compiler.errors import CompilerError, ImportFailure
from kernels_hub.compiler.export.caches import context_of, fresh, spread
from kernels_hub.compiler.export.peer import Peer, find_peer
from kernels_hub.compiler.export.results import fields_of
from kernels_hub.compiler.export.traced_forward import traced_forward
from kernels_hub.compiler.importers.data_assertions import ASSERTIONS
from kernels_hub.compiler.importers.known_values import KnownValues, known
from kernels_hub.compiler.importers.torch_export import import_torch_program
from kernels_hub.compiler.importers.torch_sizes import input_symbols
from kernels_hub.compiler.importers.torch_trace import arguments_of, paths_of
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.runtime.caches import is_cache
from kernels_hub.compiler.runtime.parts import Cache, Held, Module, Record, Tensor, Values, View
from kernels_hub.escaping import Identifier

if TYPE_CHECKING:
    from kernels_hub.compiler.importers.onnx_inputs import Shapes

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
    """A graph, and how a call of the layer maps to it. `example`: None of an ONNX file and of an exported
    program, which have `arrays` instead.

    graph: its parameters have no arrays. arguments, result: trees with a Tensor for each input, or output, of the
    graph. changed: see `Table`. aliases: parameter -> other names of the same tensor.
    """

    graph: Graph
    signature: inspect.Signature
    arguments: Mapping[str, Any]
    result: Any
    changed: Mapping[str, Mapping[int, Held]] = field(default_factory=dict)
    views: tuple[View, ...] = ()
    """Tensors of the result by the numbers that follow those of the outputs; sizes are dims of the graph."""
    example: Example | None = None
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    arrays: Mapping[str, Any] = field(default_factory=dict)
    constants: frozenset[str] = frozenset()
    """Parameters of the graph that no other module has: tensors that tracing found in the code."""
    peer: Peer | None = None
    """Of what has no example: what else runs it."""
    modules: tuple[Module, ...] | None = None
    """See `recorded_attributes.recorded`; None: not recorded yet."""
    assertions: int | None = None
    """The output that tells whether what it asserts of data holds."""
    by_layout: bool = False
    """See `importers.torch_aliases.Shared`."""
    remembered: frozenset[tuple[str, str]] = frozenset()
    """See `importers.asked_tensors.Asks`."""
    asks_for_values: bool = False
    """Whether sizes that only data tell here might be known where the sizes of arguments are fixed: see `by_values`."""

    @property
    def takes_caches(self) -> bool:
        """Whether arguments are key-value caches, which a call changes."""
        return any(isinstance(argument, Cache) for argument in self.arguments.values())

    def call_of(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[object, ...], dict[str, object]]:
        """A call of what has no example, with these tensors for the graph's inputs."""
        named = set(self.arguments_of(inspect.Parameter.KEYWORD_ONLY))
        given = {name: _filled(tree, tensors) for name, tree in self.arguments.items()}
        args = tuple(value for name, value in given.items() if name not in named)
        return args, {name: value for name, value in given.items() if name in named}

    def arguments_of(self, *kinds: inspect._ParameterKind) -> tuple[str, ...]:
        """Names of the arguments of some kinds."""
        return tuple(name for name, one in self.signature.parameters.items() if one.kind in kinds)


def from_module(
    example: Example, name: str, *, may_fix: bool = False, values: KnownValues | None = None
) -> Source:
    """Trace a module. Raises ImportFailure with all that cannot be imported.

    may_fix: see `Sizes.guard`. values: what the trace may know of the example; a program is of those arguments, then.
    """
    module = example.module
    signature = _signature(module)
    _arguments(
        example, signature, defaultdict(lambda: Tensor(0))
    )  # before any is traced with, which may change it
    of_values = {} if values is None else {path: _values_of(one) for path, one in values.arguments.items()}
    example_inputs, shapes = _exposed(example, of_values)
    with (
        known(values),
        traced_forward(module, example_inputs, example.args, example.kwargs) as call,
        warnings.catch_warnings(),
    ):
        # torch.export, of its own copies.
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
        program = import_torch_program(
            module,
            (),
            example_inputs,
            dynamic_shapes=shapes,
            name=name,
            assertions=True,
            may_fix=may_fix,
            complex_in_pairs=True,
        )
    graph = program.graph
    names, constants = _aliases(module, graph), _constants(module, graph)
    places = {path: Tensor(index) for index, path in enumerate(graph.inputs)}
    arguments = _arguments(example, signature, {**places, **of_values})
    result, changed, views = call.of(program)
    if not graph.outputs:
        raise ImportFailure("it computes nothing: its result is what it is given")
    arrays = dict(graph.weights)
    graph.weights.clear()
    return Source(
        graph, signature, arguments, result, changed, views, example, names, arrays, constants,
        by_layout=program.shared.by_layout, assertions=_place_of(ASSERTIONS, graph),
        remembered=frozenset() if program.asks is None else program.asks.remembered,
    )  # fmt: skip


def from_onnx(
    path: Path,
    name: str,
    dims: Mapping[str, Any] | None = None,
    shapes: Shapes | None = None,
    values: Mapping[str, object] | None = None,
) -> Source:
    """Import an ONNX file. dims, shapes, values: as `import_onnx` takes them.

    Raises OnnxImportError with all nodes that cannot be imported.
    """
    from kernels_hub.compiler.importers.onnx import import_onnx_program  # needs the package onnx

    program = import_onnx_program(path, dims=dims, shapes=shapes, values=values)
    graph = program.graph
    graph.name = name
    kinds = inspect.Parameter
    arguments = dict(zip(identifiers(graph.inputs), map(Tensor, itertools.count()), strict=False))
    signature = inspect.Signature([kinds(argument, kinds.POSITIONAL_OR_KEYWORD) for argument in arguments])
    places = {output: Tensor(index) for index, output in enumerate(graph.outputs)}
    result: dict[str, Any] = {}
    for output, of in program.outputs.items():
        result[output] = (
            None if of is None else places[of] if isinstance(of, str) else [places[one] for one in of]
        )
    arrays = dict(graph.weights)
    graph.weights.clear()
    bound = {"dims": dims, "shapes": shapes, "values": values}
    peer = find_peer(path, [*graph.inputs], [*graph.outputs], bound)
    return Source(graph, signature, arguments, result, arrays=arrays, peer=peer)


def layer_of(example: Example, path: str) -> Example:
    """One module of a model, with the arguments that it gets when the model runs on the example.

    Its dynamic dims are those that change with the model's. Raises CompilerError where there is no such module, or
    the model does not call it.
    """
    modules = dict(example.module.named_modules())
    if path not in modules:
        near = [module for module in modules if module.rpartition(".")[2] == path.rpartition(".")[2]] or [
            *modules
        ][1:]
        raise CompilerError(
            f"{type(example.module).__name__} has no module {path!r}; it has {', '.join(near[:6]) or 'none inside'}"
        )
    layer = modules[path]
    args, kwargs = _captured(example, layer, path)
    names: dict[str, int] = {}
    for symbol in input_symbols(
        example.module, example.args, example.kwargs, example.dynamic_shapes
    ).values():
        names.update((of_axis, 0) for of_axis in symbol if of_axis)
    shapes = [_dynamic(example, layer, path, name, (args, kwargs)) for name in names]
    merged = [
        dict(itertools.chain(*(of_leaf_part.items() for of_leaf_part in of_leaf)))
        for of_leaf in zip(*shapes, strict=True)
    ]
    if not merged:
        return Example(layer, args, kwargs)
    spec = pytree.tree_structure((args, kwargs))
    of_args, of_kwargs = pytree.tree_unflatten([leaf or None for leaf in merged], spec)
    by_name = inspect.signature(layer.forward).bind(*of_args, **of_kwargs).arguments
    return Example(layer, args, kwargs, dict(by_name))


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The module in eval mode, as it was afterwards."""
    before = [(child, child.training) for child in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for child, training in before:
            child.training = training


def resized(
    example: Example,
    sizes: Mapping[str, Sequence[int]],
    seed: int = 0,
    limits: Mapping[str, int] | None = None,
) -> Example:
    """The example with inputs of other shapes, by path. What is added repeats what was there, with seeded noise on
    floats that take many values: masks stay masks, indices in range, and a row of integers in order.

    limits: of indices of dims that get smaller, by path; what is beyond begins anew.
    """
    limits = limits or {}
    leaves, spec = pytree.tree_flatten((example.args, dict(example.kwargs)))
    paths = paths_of(example.module, example.args, example.kwargs)
    random = torch.Generator().manual_seed(seed)
    sizes_made = [
        _wrapped(leaf, sizes[path], random, limits.get(path))
        if path in sizes and isinstance(leaf, torch.Tensor)
        else leaf
        for path, leaf in zip(paths, leaves, strict=True)
    ]
    args, kwargs = pytree.tree_unflatten(sizes_made, spec)
    return Example(example.module, tuple(args), kwargs, example.dynamic_shapes)


_FEW = 4


def _wrapped(
    tensor: torch.Tensor, shape: Sequence[int], random: torch.Generator, limit: int | None
) -> torch.Tensor:
    result = tensor.detach()
    for axis, size in enumerate(shape):
        result = result.index_select(axis, torch.arange(size) % max(1, result.shape[axis]))
    if result.is_floating_point() and len(tensor.detach().unique()) > _FEW:
        noise = torch.randn(result.shape, generator=random, dtype=torch.float32)
        result = result * (1 + 0.3 * noise).to(result.dtype)
    elif limit:
        result = torch.where((result >= limit) | (result < -limit), result % limit, result)
    if _is_in_order(tensor.detach()):
        result = result.sort().values
    return result.contiguous()


def _is_in_order(tensor: torch.Tensor) -> bool:
    """Whether it is a row of integers that nowhere gets less: offsets, lengths summed up, the graph of each node."""
    whole = tensor.ndim == 1 and tensor.dtype in {torch.int32, torch.int64}
    return whole and bool((tensor[1:] >= tensor[:-1]).all())


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


def _dynamic(example: Example, layer: nn.Module, path: str, name: str, known: object) -> list[dict[int, Any]]:
    """Of each leaf of a layer's arguments: its dims that change when one dim of the model's does."""
    symbols = input_symbols(example.module, example.args, example.kwargs, example.dynamic_shapes)
    leaves = dict(zip(paths_of(example.module, example.args, example.kwargs),
                      pytree.tree_leaves((example.args, dict(example.kwargs))), strict=True))  # fmt: skip
    size = next(leaves[symbol].shape[dims.index(name)] for symbol, dims in symbols.items() if name in dims)
    other_size = size - 1 if size > 2 else size + 1  # 1 is special to torch.export
    shapes = {
        symbol: [other_size if dim == name else leaves[symbol].shape[axis] for axis, dim in enumerate(dims)]
        for symbol, dims in symbols.items()
    }
    before, after = (
        pytree.tree_leaves(known),
        pytree.tree_leaves(_captured(resized(example, shapes), layer, path)),
    )
    found: list[dict[int, Any]] = []
    dim, extra = torch.export.Dim(name), itertools.count(1)
    for leaf, changed in zip(before, after, strict=True):
        axes: dict[int, Any] = {}
        if isinstance(leaf, torch.Tensor):
            for axis, (first, second) in enumerate(zip(leaf.shape, changed.shape, strict=True)):
                if first != second:
                    same = (first, second) == (size, other_size)
                    axes[axis] = dim if same else torch.export.Dim(f"{name}_{next(extra)}")
        found.append(axes)
    return found


def _values_of(tensor: torch.Tensor) -> Values:
    """A tensor of whole numbers as tables state it."""
    numbers = tuple(map(int, tensor.flatten().tolist()))
    return Values(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), numbers)


def _exposed(
    example: Example, known_arguments: Mapping[str, Values]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The arguments that hold tensors, by name, and their dynamic dims: all that torch.export is to see."""
    named = arguments_of(example.module, example.args, example.kwargs)
    given = {
        name: value
        for name, value in named
        if name not in known_arguments
        and any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))
    }
    shapes = example.dynamic_shapes
    if not shapes:
        return given, None
    if not isinstance(shapes, Mapping):
        flat = {name: spec for (name, _), spec in zip(named, shapes, strict=False)}
    else:
        flat = dict(shapes)
        for name, parameter in inspect.signature(type(example.module).forward).parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD and isinstance(flat.get(name), Mapping):
                flat |= flat.pop(name)
            elif parameter.kind is inspect.Parameter.VAR_POSITIONAL and isinstance(
                flat.get(name), (tuple, list)
            ):
                flat |= {f"{name}_{index}": spec for index, spec in enumerate(flat.pop(name))}
    if unknown := sorted(flat.keys() - {name for name, _ in named}):
        raise CompilerError(
            f"dynamic shapes are given for {unknown[0]!r}; the arguments are {', '.join(name for name, _ in named)}"
        )
    return given, {name: flat.get(name) for name in given}


def _signature(module: nn.Module) -> inspect.Signature:
    """Of its class's forward, without self and annotations. Raises ImportFailure for defaults that are no literals."""
    signature = inspect.signature(type(module).forward)
    parameters = list(signature.parameters.values())[1:]
    for each_parameter in parameters:
        if each_parameter.default is not inspect.Parameter.empty and not _is_stated(each_parameter.default):
            raise ImportFailure(
                f"{type(module).__name__}.forward: the default of {each_parameter.name} is a "
                f"{type(each_parameter.default).__name__}; "
                "what is emitted can state numbers, strings, None, and tuples, lists and dicts of them"
            )
    return inspect.Signature(
        [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    )


def _is_stated(value: object) -> bool:
    """Whether a default is a literal, or a list or a dict of such: `{}` for what is given by name."""
    if type(value) is dict:
        return all(type(key) is str and _is_stated(one) for key, one in value.items())
    return all(map(_is_stated, value)) if type(value) is list else _is_literal(value)


def _is_literal(value: object) -> bool:
    if type(value) is tuple:
        return all(map(_is_literal, value))
    return type(value) in _LITERALS


def _arguments(
    example: Example, signature: inspect.Signature, places: Mapping[str, Tensor | Values]
) -> dict[str, Any]:
    """Raises ImportFailure for arguments that tables cannot state."""
    bound = signature.bind(*example.args, **example.kwargs)
    bound.apply_defaults()
    arguments: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if is_cache(value):
            arguments[name] = _cache(value, name, cast("Mapping[str, Tensor]", places))
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            arguments[name] = tuple(
                _tree(element, f"{name}_{index}", places) for index, element in enumerate(value)
            )
        elif kind is inspect.Parameter.VAR_KEYWORD:
            arguments[name] = {key: _tree(element, key, places) for key, element in value.items()}
        else:
            arguments[name] = _tree(value, name, places)
    return arguments


def _tree(value: Any, path: str, places: Mapping[str, Tensor | Values]) -> Any:
    if isinstance(value, torch.Tensor):
        return places[path]
    if type(value) in (tuple, list):
        return type(value)(_tree(element, f"{path}.{index}", places) for index, element in enumerate(value))
    if type(value) is dict:
        return {key: _tree(element, f"{path}.{key}", places) for key, element in value.items()}
    if _is_literal(value):
        return value
    if type(value) in pytree.SUPPORTED_NODES and (fields := fields_of(value)) is not None:
        inner = {key: _tree(element, f"{path}.{key}", places) for key, element in fields.items()}
        return Record(f"{type(value).__module__}:{type(value).__qualname__}", inner)
    raise ImportFailure(
        f"argument {path} is a {type(value).__name__}; "
        "a layer is compiled for tensors, literals, tuples, lists, dicts and outputs of other models, and for "
        "arguments that are a DynamicCache or an EncoderDecoderCache of transformers"
    )


def _cache(value: object, path: str, places: Mapping[str, Tensor]) -> Cache:
    of_two, kinds, gaps = context_of(value)
    own, *cross = (
        tuple(
            spread([places[f"{inner}.{layer}.{place}"] for place in range(sum(where))], where)
            for layer, where in enumerate(of)
        )
        for inner, of in zip([f"{path}.0", f"{path}.1"] if of_two else [path], gaps, strict=True)
    )
    return Cache(own, cross[0] if of_two else None, kinds)


def _filled(tree: object, tensors: Sequence[torch.Tensor]) -> object:
    """A tree of arguments with tensors in the place of their numbers."""
    match tree:
        case Tensor():
            return tensors[tree.place]
        case tuple():
            return tuple(_filled(one, tensors) for one in tree)
        case list():
            return [_filled(one, tensors) for one in tree]
        case dict():
            return {key: _filled(one, tensors) for key, one in tree.items()}
    return tree


def _place_of(output: str, graph: Graph) -> int | None:
    return list(graph.outputs).index(output) if output in graph.outputs else None


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
    aliases = {}
    for names in groups.values():
        if len(names) > 1:
            for name in names:
                if name in graph.parameters:
                    aliases[name] = tuple(alias for alias in names if alias != name)
    return aliases


def _constants(module: nn.Module, graph: Graph) -> frozenset[str]:
    return frozenset(set(graph.parameters) - set(_state(module)))


def identifiers(names: Iterable[str]) -> list[str]:
    """Names as arguments of a function, each told from the others, and from what its text names."""
    identifiers: list[str] = []
    for name in names:
        plain = name.isascii() and name.isidentifier() and len(name) <= _LONGEST_ARGUMENT
        proposed = name if plain else str(Identifier(name))
        if not proposed.isidentifier() or keyword.iskeyword(proposed) or proposed in _NAMED:
            proposed = f"_{proposed}"
        one = next(
            text
            for text in itertools.chain([proposed], (f"{proposed}_{n}" for n in itertools.count(2)))
            if text not in identifiers
        )
        identifiers.append(one)
    return identifiers


_LONGEST_ARGUMENT = 64
_NAMED = frozenset({"self", "LAYER", "Any", "nn"})
"""What generated methods use beside their arguments."""
