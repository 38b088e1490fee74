"""`import_aten`: imports graphs of ATen ops, as AOTAutograd hands them to compilers.

They have no signature as exported programs do: placeholders are tensors or sizes, some of them weights; results are
tensors, sizes or None. Sizes are told by the shapes of tensors, so placeholders that are sizes are no inputs of the
graph. Results keep the strides and the aliasing that the ATen graph gives them: a plan writes dense memory, and
`Result` says how a result is seen in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.importers.aten_ops import UnsupportedArgumentsError
from kernels_hub.compiler.importers.aten_ops.complex import Complex, whole
from kernels_hub.compiler.importers.further_arguments import (
    CallSize,
    FurtherArgument,
    Size,
    lengths,
    numbers,
    of_length,
    sizes_of,
    told_at_calls,
)
from kernels_hub.compiler.importers.random_numbers import draws, take_out
from kernels_hub.compiler.importers.torch_direct import is_size
from kernels_hub.compiler.importers.torch_importer import Importer, Notes
from kernels_hub.compiler.ir.dims import dim_symbols
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.types import BOOL

if TYPE_CHECKING:
    import torch
    from sympy import Expr, Symbol
    from torch.fx import GraphModule, Node
    from torch.utils._sympy.value_ranges import ValueRanges


@dataclass(frozen=True)
class StridedLayout:
    """Sizes and strides of a result in the memory of another tensor, and how far behind where that begins."""

    size: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size

    def view(self, tensor: torch.Tensor, told: Mapping[str, int]) -> torch.Tensor:
        """The result, of the tensor that it lies in. told: sizes of a call."""
        (offset,) = numbers((self.offset,), told)
        start = tensor.storage_offset() + offset
        return tensor.detach().as_strided(numbers(self.size, told), numbers(self.stride, told), start)


@dataclass(frozen=True)
class Result:
    """Where a result of the ATen graph comes from: an output, an argument, or it is fixed.

    axes: the permutation that gives the output the axes of the result. expanded: the shape that it is broadcast to,
    -1 where it stays. layout: how it lies in the output, or in the argument. is_size: the output becomes an int.
    What a call tells of shapes is a `CallSize`.
    """

    output: int | None = None
    argument: int | None = None
    literal: object = None
    axes: tuple[int, ...] | None = None
    expanded: tuple[Size, ...] | None = None
    layout: StridedLayout | None = None
    is_size: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it is an output as it is."""
        return self == Result(output=self.output)

    @property
    def told(self) -> Iterator[CallSize]:
        """The sizes that a call tells."""
        layout = () if self.layout is None else (*self.layout.size, *self.layout.stride, self.layout.offset)
        return (one for one in (*layout, *(self.expanded or ())) if isinstance(one, CallSize))


@dataclass(frozen=True)
class AtenGraph:
    """A graph, and how arguments and results of the ATen graph map to it.

    inputs: the argument that each input of the graph is. weights: name of a parameter -> the argument that it was.
    further: arguments behind those of the ATen graph: random numbers, and what tells numbers by its length. sizes: name
    of a symbol that they or results need -> the argument that tells it, and which axis; None where it is the argument.
    asserts: the last output of the graph tells whether assertions on data hold.
    """

    graph: Graph
    inputs: tuple[int, ...]
    weights: Mapping[str, int]
    results: tuple[Result, ...]
    further: tuple[FurtherArgument, ...] = ()
    sizes: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    asserts: bool = False


@dataclass(frozen=True)
class _ExportedProgram:
    """What the importer asks of a torch.export.ExportedProgram."""

    graph: torch.fx.Graph
    graph_signature: SimpleNamespace
    range_constraints: Mapping[Symbol, ValueRanges[Expr]]
    state_dict: Mapping[str, torch.Tensor]
    constants: Mapping[str, torch.Tensor]
    graph_module: GraphModule
    call_spec: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(in_spec=None, out_spec=None))


def import_aten(
    module: GraphModule,
    weights: Mapping[int, torch.Tensor],
    name: str = "graph",
    *,
    aliases: Collection[int] | None = None,
) -> AtenGraph:
    """The graph of an ATen graph without writes; nodes carry their examples ("val").

    weights: arguments that are parameters of the graph, with their tensors. aliases: places of the results that have
    to go on sharing memory with each other and with arguments; None: all.

    Raises ImportFailure with every op that is not supported.
    """
    given = len(module.graph.find_nodes(op="placeholder"))
    module, making = _without_random_numbers(module)
    source = _with_constants(module)
    placeholders = source.graph.find_nodes(op="placeholder")
    count = given + len(making)
    state, constants, specs = {}, {}, []
    for position, node in enumerate(placeholders):
        kind, target = "USER_INPUT", None
        if position >= count:
            kind, target = "CONSTANT_TENSOR", node.name
            constants[node.name] = node.meta["constant"]
        elif position in weights:
            kind, target = "PARAMETER", node.name
            state[node.name] = weights[position]
        specs.append(SimpleNamespace(arg=node, kind=SimpleNamespace(name=kind), target=target))
    program = _ExportedProgram(
        source.graph,
        SimpleNamespace(input_specs=specs, output_specs=()),
        _ranges(placeholders),
        state,
        constants,
        source,
    )
    places = {node.name: index for index, node in enumerate(placeholders[:count])}
    telling = lengths(placeholders[:given])
    making += [FurtherArgument(of_length, (node,)) for node in telling]
    lengths_of = {node: f"length_of_{node.name}" for node in telling}
    places |= {length: count + index for index, length in enumerate(lengths_of.values())}
    work = _Importer(
        Graph(name), program, "refuse", Notes({}, ""),
        tells_assertions=True, aliases=aliases, places=places, lengths=lengths_of,
    )  # fmt: skip
    work.run([node.name for index, node in enumerate(placeholders[:count]) if index not in weights], {})
    graph = work.graph
    further = tuple(one.in_dims(work.sizes.dim) for one in making)
    told = [size for argument in further for size in argument.told]
    told += [size for result in work.results for size in result.told]
    needed = {one.name for one in dim_symbols(size.dim for size in told)}
    sizes = {one: of for one, of in sizes_of(placeholders[:given]).items() if one in needed}
    if untold := needed - sizes.keys():
        raise CompilerError(f"{name} takes {', '.join(sorted(untold))}, which no argument tells as it is")
    return AtenGraph(
        graph,
        tuple(places[one] for one in graph.inputs),
        {one: places[one] for one in state if one in graph.weights},
        tuple(work.results),
        further,
        sizes,
        asserts=work.holds is not None,
    )


def _without_random_numbers(module: GraphModule) -> tuple[GraphModule, list[FurtherArgument]]:
    """The module with arguments for the numbers that it draws, and the calls that draw them."""
    import copy

    import torch

    if not any(draws(node) for node in module.graph.nodes):
        return module, []
    graph = copy.deepcopy(module.graph)
    return torch.fx.GraphModule(module, graph), take_out(graph)


def _with_constants(module: GraphModule) -> GraphModule:
    """The module with tensors that it holds as further placeholders, behind the others."""
    import copy

    import torch

    if not any(node.op == "get_attr" for node in module.graph.nodes):
        return module
    made = torch.fx.GraphModule(module, copy.deepcopy(module.graph))
    last = made.graph.find_nodes(op="placeholder")
    anchor = last[-1] if last else next(iter(made.graph.nodes))
    for node in [node for node in made.graph.nodes if node.op == "get_attr"]:
        held: Any = module
        for part in str(node.target).split("."):
            held = getattr(held, part, None)
        if not isinstance(held, torch.Tensor):
            continue
        inserting = made.graph.inserting_after(anchor) if last else made.graph.inserting_before(anchor)
        with inserting:
            anchor = made.graph.placeholder(f"constant_{node.name}")
        last = [anchor]
        anchor.meta = {**node.meta, "constant": held, "val": node.meta.get("val", held)}
        node.replace_all_uses_with(anchor)
        made.graph.erase_node(node)
    return made


def _ranges(placeholders: list[Node]) -> Mapping[Symbol, ValueRanges[Expr]]:
    """What is known of symbolic sizes."""
    for node in placeholders:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None and mode.shape_env is not None:
            ranges: Mapping[Symbol, ValueRanges[Expr]] = mode.shape_env.var_to_range
            return ranges
    return {}


@dataclass
class _Importer(Importer):
    """An import whose arguments may be sizes, and whose results have strides and share memory."""

    aliases: Collection[int] | None = None
    places: Mapping[str, int] = field(default_factory=dict)
    lengths: Mapping[Any, str] = field(default_factory=dict)
    """Arguments that are numbers -> the name of an input of that length."""
    results: list[Result] = field(default_factory=list)
    owners: dict[Any, int] = field(default_factory=dict)
    """Ops whose memory results share -> the output."""
    guards_are_checked: ClassVar[bool] = True  # by Dynamo

    def _input(self, node: Node, path: str) -> None:
        example = node.meta.get("val")
        if is_size(example):
            self.env[node] = size = self.sizes.dim(example)
            if node in self.lengths:
                self.graph.input(self.lengths[node], (size,), BOOL)
            return
        super()._input(node, path)

    def _state(self, node: Node, spec: SimpleNamespace, shared: dict[object, Complex | Value]) -> None:  # noqa: ARG002
        super()._state(node, spec, {})  # weights that are one tensor now may be two at another call

    def _outputs(self) -> tuple[list[tuple[str, object]], dict[str, str]]:
        (last,) = self.program.graph.find_nodes(op="output")
        nodes = last.args[0]
        sharing = dict.fromkeys(nodes if self.aliases is None else [nodes[place] for place in self.aliases])
        shared = _Shared(list(sharing), self.program.graph)
        known: dict[Node | int | None, Result] = {}
        for node in nodes:
            if node not in known or node is None:
                known[node] = self._one(node, shared if node in sharing else None)
            self.results.append(known[node])
        return [], {}

    def _one(self, node: Node | int | None, shared: _Shared | None) -> Result:
        if node is None or isinstance(node, int):
            return Result(literal=node)
        if node.name in self.places:
            return Result(argument=self.places[node.name])
        example = node.meta.get("val")
        if is_size(example):
            return Result(output=self._emit(self.graph.size(self.sizes.dim(example))), is_size=True)
        owner = None if shared is None else shared.owner(node)
        if owner is not None and example is not None:
            try:
                return self._shared_result(node, owner, example)
            except UnsupportedArgumentsError as error:
                self.problems.append(f"{node.name}: {error}")
                return Result()
        value = whole(self.env[node])
        if not isinstance(value, Value) or example is None:
            self._lost(node.name)
            return Result()
        try:
            return self._laid_out(value, example)
        except UnsupportedArgumentsError as error:
            self.problems.append(f"{node.name}: {error}")
            return Result()

    def _shared_result(self, node: Node, owner: Node, example: torch.Tensor) -> Result:
        """A result in the memory of an argument, or of another result.

        Raises UnsupportedArgumentsError where it cannot be told how it lies there.
        """
        base = owner.meta["val"]
        if base.dtype is not example.dtype:
            raise UnsupportedArgumentsError("it shares memory with a tensor of another dtype")
        if owner.name not in self.places and not _is_whole(owner):
            raise UnsupportedArgumentsError(
                "it shares memory with another result, and that memory is no contiguous tensor"
            )
        layout = StridedLayout(
            tuple(map(self._at_calls, example.shape)),
            tuple(map(self._at_calls, example.stride())),
            self._at_calls(example.storage_offset() - base.storage_offset()),
        )
        if owner.name in self.places:
            return Result(argument=self.places[owner.name], layout=layout)
        if owner not in self.owners:
            self.owners[owner] = self._emit(self.env[owner])
        return Result(output=self.owners[owner], layout=None if owner is node else layout)

    def _at_calls(self, size: int | torch.SymInt) -> Size:
        """A size as a number, or as what a call tells. Raises UnsupportedArgumentsError for what no dim is."""
        return told_at_calls(self.sizes.dim(size))

    def _emit(self, value: object) -> int:
        place = len(self.graph.outputs)
        value = whole(value)
        if isinstance(value, Value):
            self.graph.output(f"result{place}", value)
        else:
            self._lost(f"result {place}")
        return place

    def _laid_out(self, value: Value, example: torch.Tensor) -> Result:
        """A result with the strides of its example, as dense memory that is permuted and broadcast."""
        strides, shape = [_hint(one) for one in example.stride()], [_hint(dim) for dim in example.shape]
        if _is_dense(shape, strides):
            return Result(output=self._emit(value))
        expanded = None
        flat = [axis for axis, stride in enumerate(strides) if stride == 0 and shape[axis] != 1]
        if flat:
            expanded = tuple(
                self._at_calls(size) if axis in flat else -1 for axis, size in enumerate(example.shape)
            )
            for axis in flat:
                value = value.slice(axis, 0, 1)
        order = sorted(range(len(strides)), key=lambda axis: (-strides[axis], axis))
        axes = tuple(order.index(axis) for axis in range(len(order)))
        return Result(output=self._emit(value.permute(*order)), axes=axes, expanded=expanded)


def _is_dense(shape: list[int], strides: list[int]) -> bool:
    """Whether a tensor is contiguous; sizes of 1 have any stride."""
    expected = 1
    for axis in reversed(range(len(shape))):
        if shape[axis] != 1:
            if strides[axis] != expected:
                return False
            expected *= shape[axis]
    return True


def _hint(size: int | torch.SymInt) -> int:
    """A size, or its example. Raises CompilerError where there is none."""
    if isinstance(size, int):
        return size
    if not isinstance(size.node.hint, int):
        raise CompilerError(f"the size {size} comes from data")
    return size.node.hint


class _Shared:
    """Which results lie in the memory of an argument, or of another result."""

    def __init__(self, results: list[Node | int | None], graph: torch.fx.Graph) -> None:
        self._owners: dict[int, Node] = {}
        counts: dict[int, list[Node]] = {}
        for node in dict.fromkeys(
            result for result in results if result is not None and not isinstance(result, int)
        ):
            key = _memory(node)
            if key is not None:
                counts.setdefault(key, []).append(node)
        for node in graph.find_nodes(op="placeholder"):
            key = _memory(node)
            if key is not None and key in counts:
                self._owners[key] = node
        for key, nodes in counts.items():
            if key in self._owners or len(nodes) < 2:
                continue
            whole = [node for node in nodes if _is_whole(node)]
            self._owners[key] = whole[0] if whole else self._base(nodes[0], key)

    @staticmethod
    def _base(node: Node, key: int) -> Node:
        """The op that made the memory, which the others are views of."""
        seen = node
        while seen.all_input_nodes:
            seen = seen.all_input_nodes[0]
            if _memory(seen) == key:
                node = seen
            elif not isinstance(
                seen.meta.get("val"), (list, tuple)
            ):  # those of `split`, whose items are views
                break
        return node

    def owner(self, node: Node) -> Node | None:
        """The argument or result whose memory a result lies in; None for memory of its own."""
        key = _memory(node)
        return None if key is None else self._owners.get(key)


def _memory(node: Node) -> int | None:
    """What tells the memory of a node's example from that of others."""
    example = node.meta.get("val")
    if example is None or not hasattr(example, "untyped_storage"):
        return None
    found: int = example.untyped_storage()._cdata
    return found


def _is_whole(node: Node) -> bool:
    """Whether the tensor of an op is contiguous and fills its memory, whatever its sizes."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    example = node.meta["val"]
    expected: int | torch.SymInt = 1
    for size, stride in zip(reversed(example.shape), reversed(example.stride()), strict=True):
        if statically_known_true(size == 1):
            continue
        if not statically_known_true(stride == expected):
            return False
        expected = expected * size
    filled = expected * example.element_size()
    return statically_known_true(example.untyped_storage().nbytes() == filled)
