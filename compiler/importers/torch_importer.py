"""Builds a graph of an exported program: each op by its handler in `aten_ops`, inputs and outputs under their names.

All that is not supported is listed at once. `torch_aten` imports what was traced otherwise in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from kernels_hub.compiler.errors import CompilerError, ImportFailure, ShapeError
from kernels_hub.compiler.importers.aten_ops import AtenCall, UnsupportedArgumentsError, handler_of
from kernels_hub.compiler.importers.aten_ops.complex import (
    Complex,
    complex_handler_of,
    in_parts,
    is_complex,
    part_dtype,
    replace_dtype,
    whole,
)
from kernels_hub.compiler.importers.data_assertions import ASSERTIONS, condition, only_asserted
from kernels_hub.compiler.importers.decided_sizes import Asked, cut, squeezed
from kernels_hub.compiler.importers.torch_aliases import Shared
from kernels_hub.compiler.importers.torch_direct import (
    IN_PLACE,
    NOTE,
    PUT_BACK,
    Writes,
    functional,
    is_comparison_of_sizes,
    is_condition,
    is_float_of_sizes,
    is_size,
    layout_of,
    name_of,
    needed,
)
from kernels_hub.compiler.importers.torch_program import (
    TorchProgram,
    array_of,
    dtype_of,
    output_names,
    pairs_of,
)
from kernels_hub.compiler.importers.torch_regions import CONTROL_FLOW, Subgraph
from kernels_hub.compiler.importers.torch_sizes import Sizes
from kernels_hub.compiler.importers.torch_trace import place_of
from kernels_hub.compiler.importers.torch_views import in_graph
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.op import TensorType
from kernels_hub.compiler.ir.proofs import proves_different

if TYPE_CHECKING:
    import sympy
    import torch
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from kernels_hub.compiler.importers.aten_ops.call import Handler

Mutations = Literal["refuse", "outputs"]

_CONSTANT_LIMIT = 4096
"""Elements up to which a tensor that tracing lifted out of the code is a constant, not a parameter."""
_MISSING = object()
_TAKE_FLOATS = frozenset({"add", "sub", "rsub", "mul", "div", "true_divide", "pow", "scalar_tensor"})
"""Ops whose operands may be floats that are computed from sizes."""
_TAKE_COMPARISONS = frozenset({"full", "full_like", "new_full", "scalar_tensor"})
"""Ops whose operands may be the truth of comparisons of sizes."""


@dataclass(frozen=True)
class Notes:
    """What gradients are to be refused for: of placeholders by name, and of all results. See `torch_autograd`."""

    placeholders: Mapping[str, str]
    results: str

    @classmethod
    def of(cls, module: torch.nn.Module, program: torch.export.ExportedProgram, *, strict: bool) -> Notes:
        """Of a program as torch.export gives it; notes of its ops are put where they belong."""
        from kernels_hub.compiler.importers.torch_autograd import complete, hooked

        reason = "it was traced with strict=True, which does not tell what the module says to autograd"
        return cls(complete(program), reason if strict else hooked(module))


@dataclass
class Importer:
    """One import. A node that could not be imported leaves `_MISSING`, which its users hand on silently."""

    graph: Graph
    program: Any
    mutations: Mutations
    notes: Notes
    written: Writes = field(default_factory=Writes)
    """See `torch_direct.writes`."""
    shared: Shared = field(default_factory=Shared)
    """Of the program as it was traced; its views are brought into the graph."""
    env: dict[Any, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    causes: list[Exception] = field(default_factory=list)
    """The errors that some of them are."""
    sizes: Sizes = field(init=False)
    holds: Value | None = None
    """Whether all that the program asserts of data holds, where it asserts anything."""
    tells_assertions: bool = False
    layout_is_compared: bool = False
    """Whether calls with arguments that are not contiguous are not run on the program."""
    """Whether the caller looks at the output `ASSERTIONS`."""
    may_fix: bool = False
    """See `Sizes.guard`."""
    complex_in_pairs: bool = False
    """Whether complex weights are parameters of floats (…, 2), which have a type in C; layers read them so."""
    guards_are_checked: ClassVar[bool] = False
    """Whether the caller sees at every call that what was found of the example's sizes holds."""

    def run(self, paths: list[str], names: dict[str, list[Any]], asked: Asked | None = None) -> TorchProgram:
        """Import the program.

        paths: names of user inputs. names: what their symbolic dims are called. asked: what its trace asked of sizes.
        """
        asked = asked or Asked()
        self.sizes = Sizes(self.graph, self.program.range_constraints)
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        placeholders = [node for node in self.program.graph.nodes if node.op == "placeholder"]
        users = [node for node in placeholders if specs[node.name].kind.name == "USER_INPUT"]
        of_users = dict(zip(users, paths, strict=True))
        for node, path in of_users.items():
            self.sizes.call(node.meta.get("val"), names.get(path, []))
        graph = self.program.graph
        self.sizes.raise_bounds([*asked.by_models, *squeezed(graph), *cut(graph)])
        undecided = [one for one in self._guards(users) if self.sizes.holds(one) is False]
        guards = [one for one in undecided if not asked.decides_no_value(one)]
        self.sizes.guard(guards, are_checked=self.guards_are_checked, may_fix=self.may_fix)
        if not self.guards_are_checked:
            self.sizes.bound(asked.by_models)
        shared: dict[Any, Complex | Value] = {}
        for node in placeholders:
            if node in of_users:
                self._input(node, of_users[node])
            else:
                self._state(node, specs[node.name], shared)
        for node in placeholders:
            with self.graph.origin(of_users.get(node) or specs[node.name].target):
                self.env[node] = _stopped(self.env[node], self.notes.placeholders.get(node.name))
        self.ops(needed(self.program))
        outputs, mutated = self._outputs()
        if self.holds is not None and self.tells_assertions:
            self.graph.output(ASSERTIONS, self.holds)
        sharing = in_graph(self.shared, outputs, self.graph, self._of_node, self.sizes)
        if self.problems:
            what = "1 thing is" if len(self.problems) == 1 else f"{len(self.problems)} things are"
            raise ImportFailure(
                f"{self.graph.name} cannot be imported: {what} not supported:\n  "
                + "\n  ".join(self.problems),
                of_sizes=any(
                    getattr(one, "of_sizes", False) or isinstance(one, ShapeError) for one in self.causes
                ),
                unequal=[pair for one in self.causes if (pair := getattr(one, "unequal", None))],
            )
        call_spec = self.program.call_spec
        return TorchProgram(
            self.graph, tuple(paths), tuple(outputs), mutated, call_spec.in_spec, call_spec.out_spec, sharing
        )

    def _guards(self, users: Sequence[torch.fx.Node]) -> list[sympy.Basic]:
        """What export found for the example, of sizes that inputs tell: guards, and assertions in the program."""
        if (shape_env := _shape_env(users)) is None:
            return []
        asserts = (one for one in self.program.graph.nodes if name_of(one.target) == "_assert_scalar.default")
        of_data = only_asserted(self.program.graph)
        conditions = (one.args[0] for one in asserts if one not in of_data)
        sizes = (one.meta.get("val") for one in conditions if hasattr(one, "meta"))
        asserted = [one.node.expr for one in sizes if hasattr(one, "node")]
        return [shape_env.simplify(one) for one in [*(guard.expr for guard in shape_env.guards), *asserted]]

    def within(self, graph: Graph, module: torch.fx.GraphModule) -> Importer:
        """The import of a subgraph into a graph. `give` says what its arguments are."""
        program = Subgraph(module.graph, module, self.program.range_constraints)
        inner = Importer(graph, program, self.mutations, self.notes)
        inner.sizes = Sizes(graph, program.range_constraints)
        inner.sizes.names, inner.sizes.solved = self.sizes.names, self.sizes.solved
        inner.sizes.ranges = self.sizes.ranges
        return inner

    def give(self, node: torch.fx.Node, value: object) -> None:
        """Say what an argument of a subgraph is; sizes are the same symbols there."""
        example = node.meta.get("val")
        self.env[node] = self.sizes.dim(example) if is_size(example) else value

    def ops(self, live: Collection[torch.fx.Node]) -> None:
        """Import those of the program's ops that something comes of."""
        asserted = only_asserted(self.program.graph)
        for node in self.program.graph.nodes:
            if node in asserted:
                if name_of(node.target).startswith("_assert"):
                    self._assert(node)
            elif node.op == "call_function":
                if node in live:
                    self._call(node)
                if name_of(node.target) in IN_PLACE:
                    self._write(node)
            elif node.op == "get_attr":
                self.env[node] = getattr(getattr(self.program, "graph_module", None), node.target, _MISSING)
                if self.env[node] is _MISSING:
                    self.problems.append(f"{node.target}: a subgraph (control flow) is not supported")

    def _input(self, node: torch.fx.Node, path: str) -> None:
        example = node.meta.get("val")
        of = self._type(example)
        if of is not None:
            self.env[node] = in_parts(self.graph.input(path, of.shape, of.dtype))
        elif is_size(example) and not isinstance(example, (bool, int)):
            self.env[node] = _MISSING
            self.problems.append(f"input {path!r}: a dynamic {type(example).__name__}; give it as a tensor")
        else:
            self.env[node] = example

    def _state(self, node: torch.fx.Node, spec: Any, shared: dict[Any, Complex | Value]) -> None:
        """A parameter, buffer or lifted constant."""
        if spec.kind.name == "TOKEN":
            self.env[node] = None
            return
        target = spec.target or node.name
        stored = self.program.state_dict.get(target)
        tensor = self.program.constants.get(target) if stored is None else stored
        of = self._type(tensor)
        if of is None:
            self.env[node] = _MISSING
            self.problems.append(f"{target}: a {type(tensor).__name__} as state of the module")
            return
        if spec.kind.name == "CONSTANT_TENSOR" and tensor.numel() <= _CONSTANT_LIMIT:
            self.env[node] = in_parts(self.graph.constant(array_of(tensor).copy()))
            return
        key = (tensor.data_ptr(), of, tensor.stride()) if tensor.numel() else node
        if key not in shared:
            shared[key] = self._parameter(target, of, tensor)
        self.env[node] = shared[key]

    def _parameter(self, name: str, of: TensorType, tensor: torch.Tensor) -> Complex | Value:
        if not (self.complex_in_pairs and of.dtype.is_complex):
            return in_parts(self.graph.parameter(name, of.shape, of.dtype, lambda: array_of(tensor)))
        shape, dtype = (*of.shape, 2), part_dtype(of.dtype)
        return Complex.of_pairs(self.graph.parameter(name, shape, dtype, lambda: pairs_of(tensor)))

    def _write(self, node: torch.fx.Node) -> None:
        """What an op wrote is from now on the value of every name of that memory."""
        value = self.env[node]
        try:
            for part in self.written.parts.get(node, ()):
                value = self._put_back(part, value)
        except (CompilerError, UnsupportedArgumentsError) as error:
            value = _MISSING
            self.causes.append(error)
            self.problems.append(self._told(node, name_of(node.target), str(error)))
        root = self.written.written_by(node)
        names = self.written.names.items()
        for name in (root, *(one for one, of in names if of is root and one in self.env)):
            self.env[name] = value

    def _put_back(self, part: torch.fx.Node, value: object) -> object:
        """What a part is taken of, with another value in its place."""
        (whole, *places), _ = _bound(part)
        if value is _MISSING or self.env[whole] is _MISSING:
            return _MISSING
        name = PUT_BACK[name_of(part.target)]
        handler, of = handler_of(name), self._type(whole.meta["val"])
        assert handler is not None and of is not None, "it is in the table, and of a tensor"
        places = [self.argument(one) for one in places]
        with self.graph.origin(place_of(part)):
            result = handler(AtenCall(self.graph, name, (of,)), self.env[whole], value, *places)
        _check(result, of)
        return result

    def _call(self, node: torch.fx.Node) -> None:
        name = name_of(node.target)
        if name in IN_PLACE:
            name = functional(name)
        if name == "getitem":
            source, position = node.args
            results = self.env[source]
            self.env[node] = results if results is _MISSING else results[position]
            return
        example = node.meta.get("val")
        try:
            if is_size(example) and not name.startswith(("_local_scalar", "item")):
                self.env[node] = self.sizes.dim(example)
                return
            if is_float_of_sizes(example) or is_comparison_of_sizes(example):
                self.env[node] = example
                return
            if example is None and not name.startswith(("_assert", "sym_constrain")):
                example = ()
            self.env[node] = _MISSING
            if name in CONTROL_FLOW and node.target.__class__.__name__ != "OpOverload":
                self._branch(node, name)
                return
            handler = self._handler(node, name, example)
            if handler is None:
                if not is_condition(name, example):
                    raise UnsupportedArgumentsError("no handler")
                if isinstance(example, bool):
                    self.env[node] = example
                return
            results = self._handled(node, name, handler, example)
            with self.graph.origin(place_of(node)):
                self.env[node] = _stopped(results, self._note(node))
        except (CompilerError, UnsupportedArgumentsError) as error:
            self.env[node] = _MISSING
            self.causes.append(error)
            self.problems.append(self._told(node, name, str(error)))

    def _assert(self, node: torch.fx.Node) -> None:
        """An assertion on data."""
        if any(self.env.get(one) is _MISSING for one in node.all_input_nodes):
            return
        name = name_of(node.target)
        if not self.tells_assertions:
            self.problems.append(self._told(node, name, "an assertion on data, which nothing here looks at"))
            return
        try:
            value = condition(node, self._known)
        except KeyError as error:
            self.problems.append(self._told(node, name, f"an assertion on data by {error}"))
            return
        except UnsupportedArgumentsError:  # why it is missing is told of its own op
            return
        self._hold(value)

    def _known(self, node: torch.fx.Node) -> Value:
        if self.env[node] is _MISSING:
            raise UnsupportedArgumentsError("what it asserts of cannot be imported")
        value: Value = self.env[node]
        return value

    def _hold(self, value: Value) -> None:
        self.holds = value if self.holds is None else self.holds & value

    def _branch(self, node: torch.fx.Node, name: str) -> None:
        """`torch.cond` and its kin."""
        if any(self.env[operand] is _MISSING for operand in node.all_input_nodes):
            return
        with self.graph.origin(place_of(node)):
            self.env[node] = CONTROL_FLOW[name](self, node)

    def _handler(self, node: torch.fx.Node, name: str, example: object) -> Handler | None:
        if node.target.__class__.__name__ != "OpOverload":
            return None
        if name.startswith("_assert"):
            return handler_of(name)
        first = example[0] if isinstance(example, (tuple, list)) and example else example
        of_complex = getattr(getattr(first, "dtype", None), "is_complex", False)
        operands = [self.argument(one) for one in (*node.args, *node.kwargs.values())]
        return complex_handler_of(name) if of_complex or is_complex(operands) else handler_of(name)

    def _handled(self, node: torch.fx.Node, name: str, handler: Handler, example: Any) -> Any:
        args, kwargs = _bound(node)
        args, kwargs = (
            [self.argument(argument) for argument in args],
            {k: self.argument(v) for k, v in kwargs.items()},
        )
        if any(_has_missing(operand) for operand in (*args, *kwargs.values())):
            return _MISSING
        args = [self._number(operand, name) for operand in args]
        examples = tuple(example) if (several := isinstance(example, (tuple, list))) else (example,)
        sizes = tuple(self.sizes.dim(example) for example in examples if is_size(example))
        layout = layout_of(node, checked=self.guards_are_checked or self.layout_is_compared)
        call = AtenCall(self.graph, name, tuple(map(self._type, examples)), sizes, layout)
        with self.graph.origin(place_of(node)):
            result = handler(call, *args, **kwargs)
            for holds in call.asserted:
                self._hold(holds)
        for value, of in zip(result if several else (result,), call.results, strict=False):
            if isinstance(value, Complex) and of is not None and of.dtype.is_complex:
                _check(value.real, replace_dtype(of))
                _check(value.imaginary, replace_dtype(of))
            elif isinstance(value, Value) and of is not None:
                _check(value, of)
        return result

    def _number(self, operand: object, name: str) -> object:
        """An operand of an op; what is computed from sizes and no size as a value of the graph."""
        if is_comparison_of_sizes(operand) and not name.startswith("_assert"):
            if name.partition(".")[0] not in _TAKE_COMPARISONS:
                raise UnsupportedArgumentsError(f"a comparison of sizes: {operand}", of_sizes=True)
            return self.sizes.comparison_value(operand)
        if not is_float_of_sizes(operand):
            return operand
        if name.partition(".")[0] not in _TAKE_FLOATS:
            what = f"a float that is computed from sizes: {operand}"
            raise UnsupportedArgumentsError(what, of_sizes=True)
        return self.sizes.float_value(operand)

    def _note(self, node: torch.fx.Node) -> str | None:
        """The note of an op, where others than ops of the same note see its results or what it writes."""
        note: str | None = (node.meta.get("custom") or {}).get(NOTE)
        if note is None or not any(
            isinstance(self.env[operand], (Value, Complex)) for operand in node.all_input_nodes
        ):
            return None
        shows = node in self.written or not all(
            (user.meta.get("custom") or {}).get(NOTE) == note for user in node.users
        )
        return note if shows else None

    def argument(self, value: object) -> Any:
        """An argument of a node: its value, or what it says."""
        import torch

        if isinstance(value, torch.fx.Node):
            return self.env[value]
        if isinstance(value, (list, tuple)):
            return [self.argument(element) for element in value]
        if isinstance(value, torch.dtype):
            return dtype_of(value)
        return self.sizes.dim(value) if isinstance(value, torch.SymInt) else value

    def _type(self, example: object) -> TensorType | None:
        import torch

        if not isinstance(example, torch.Tensor):
            return None
        return TensorType(dtype_of(example.dtype), tuple(self.sizes.dim(dim) for dim in example.shape))

    def _told(self, node: Any, name: str, reason: str) -> str:
        example = node.meta.get("val")
        shape = ""
        if hasattr(example, "shape"):
            shape = f" -> {str(example.dtype).removeprefix('torch.')}[{', '.join(map(str, example.shape))}]"
        reason = reason.splitlines()[0] if reason else "refused"
        return f"{_library(node.target)}.{name} (%{node.name}){shape}: {reason}; at {place_of(node)}"

    def _outputs(self) -> tuple[list[tuple[str, Any]], dict[str, str]]:
        from torch.utils import _pytree as pytree

        (node,) = (node for node in self.program.graph.nodes if node.op == "output")
        values = [self.argument(output) for output in node.args[0]]
        specs = self.program.graph_signature.output_specs
        count = sum(spec.kind.name == "USER_OUTPUT" for spec in specs)
        tree = pytree.tree_unflatten(list(range(count)), self.program.call_spec.out_spec)
        names = output_names(pytree.tree_flatten_with_path(tree)[0])
        outputs: list[tuple[str, Any]] = []
        mutated: dict[str, str] = {}
        for spec, value in zip(specs, values, strict=True):
            if spec.kind.name == "USER_OUTPUT":
                outputs.append(self._result(names[len(outputs)], value))
            elif spec.kind.name == "TOKEN":
                continue
            elif self.mutations == "refuse":
                kind = spec.kind.name.removeprefix("USER_").split("_")[0].lower()
                self.problems.append(
                    f"{spec.target}: a call changes this {kind}; "
                    "call module.eval() if it is a statistic; import_torch(…, mutations='outputs') makes it an output"
                )
            else:
                mutated[spec.target] = self._result(f"mutated.{spec.target}", value)[1]
        return outputs, mutated

    def _lost(self, result: str) -> None:
        """Of a result nothing came: why was told, or it is told here, so that none is ever left out in silence."""
        if not self.problems:
            self.problems.append(f"{result}: what it is made of cannot be imported")

    def _of_node(self, node: object) -> Value | None:
        """What an op came to, as a result is."""
        value = whole(self.env.get(node))
        return _stopped(value, self.notes.results or None) if isinstance(value, Value) else None

    def _result(self, name: str, value: object) -> tuple[str, Any]:
        value = whole(value)
        if isinstance(value, Value):
            self.graph.output(name, _stopped(value, self.notes.results or None))
            return "output", name
        if is_float_of_sizes(value):
            self.problems.append(f"{name}: its result is a float that is computed from sizes: {value}")
        elif is_comparison_of_sizes(value):
            self.problems.append(f"{name}: its result is a comparison of sizes: {value}")
        elif value is _MISSING:
            self._lost(name)
        elif value is not None and not isinstance(value, (bool, int, float, str)):
            self.graph.output(name, self.graph.size(value))
            return "output", name
        return "literal", value


def _shape_env(inputs: Sequence[torch.fx.Node]) -> ShapeEnv | None:
    """What export knows of the sizes of inputs; None where all of them are numbers."""
    for node in inputs:
        for dim in getattr(node.meta.get("val"), "shape", ()):
            if hasattr(dim, "node"):
                found: ShapeEnv = dim.node.shape_env
                return found
    return None


def _stopped(found: object, note: str | None) -> Any:
    """Values that gradients go no further than. note: as `torch_autograd.note_of` gives it."""
    if note is None:
        return found
    if isinstance(found, (tuple, list)):
        return [_stopped(one, note) for one in found]
    if isinstance(found, Complex):
        return found.each(lambda part: _stopped(part, note))
    if not isinstance(found, Value) or not (found.dtype.is_float or found.dtype.is_complex):
        return found
    if found.op_name == "stop_gradient" and note in {"", found.node.attrs["reason"]}:
        return found
    return found.unary("stop_gradient", reason=note)


def _check(value: Value, of: TensorType) -> None:
    """What a handler made is what torch.export says that the op gives."""
    same_rank = value.rank == len(of.shape)
    if value.dtype is not of.dtype or not same_rank or any(map(proves_different, value.shape, of.shape)):
        raise UnsupportedArgumentsError(
            f"imported as {value.type}, torch.export says {of}: a defect of the importer"
        )


def _has_missing(value: object) -> bool:
    return value is _MISSING or (isinstance(value, list) and any(map(_has_missing, value)))


def _library(target: object) -> str:
    return str(getattr(target, "namespace", getattr(target, "__module__", "python")))


def _bound(node: Any) -> tuple[list[Any], dict[str, Any]]:
    """Arguments by an op's schema: all positional ones, all keyword-only ones, defaults filled in."""
    args, kwargs = list(node.args), dict(node.kwargs)
    keywords: dict[str, Any] = {}
    for index, argument in enumerate(node.target._schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        if argument.kwarg_only:
            keywords[argument.name] = kwargs.get(argument.name, default)
        elif index >= len(args):
            args.append(kwargs.get(argument.name, default))
    return args, keywords
