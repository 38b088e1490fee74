"""Which results of an exported program share memory with its arguments, with weights, or with each other.

    result                                                   is given back as
    an argument, or another result                           the very tensor
    a view of these, of a weight, or of memory that other
    results are views of, too; a weight                      that tensor after the same view operations
    what no view operation makes of them                     refused: a program makes its results anew

What a caller writes into such a result, eager has written elsewhere as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from kernels_hub.compiler.importers.torch_direct import ITSELF, NOTE, name_of

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram
    from torch.fx import Node

Step = tuple[str, tuple[object, ...]]
"""An ATen overload without its library ("select.int"), or "getitem", and its arguments after the tensor; "no_grad
select.int" of an op that runs without gradients in eager, too."""


@dataclass(frozen=True)
class View:
    """A result that view operations make at the call.

    kind: what of. root: the path of an argument; name, dtype and shape of a weight; of a result, the op that made the
    memory, and once imported its value. at: the result that is this memory itself, None where there is none. steps:
    sizes among their arguments are symbols of torch.export, and once imported dims. order: of a result, axes of the
    memory from the slowest to the fastest in eager; the steps begin at contiguous memory.
    """

    kind: Literal["result", "argument", "weight"]
    root: object
    steps: tuple[Step, ...]
    at: int | None = None
    order: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Shared:
    """What results are. Numbers are places among the leaves of the result.

    given: result -> the argument that it is, by path. same: result -> the earlier result that it is.
    views: result -> what it is a view of. refused: what is none of these and yet shares memory, in words; each names
    a result. by_layout: whether what shares memory, or what is written to, depends on strides of arguments.
    """

    given: Mapping[int, str] = field(default_factory=dict)
    same: Mapping[int, int] = field(default_factory=dict)
    views: Mapping[int, View] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    by_layout: bool = False


@dataclass(frozen=True)
class _Chain:
    """How a result comes from the memory that it lies in. nodes: the view operations, in order; last: what is left of
    the result without ops that give what they are given."""

    root: Node
    nodes: tuple[Node, ...]
    last: Node


def shared_results(program: ExportedProgram, paths: Mapping[str, str], names: Sequence[str]) -> Shared:
    """What the results share. paths: placeholders that are arguments -> their paths; names: of the results."""
    (end,) = program.graph.find_nodes(op="output")
    kinds = [spec.kind.name for spec in program.graph_signature.output_specs]
    results = [value for value, kind in zip(end.args[0], kinds, strict=True) if kind == "USER_OUTPUT"]
    chains = {
        place: chain_of(value)
        for place, value in enumerate(results)
        if hasattr(value, "op") and "Tensor" in type(value.meta.get("val")).__name__
    }
    found = _Found(program, paths, names)
    found.of_hidden(program, chains)
    found.of_outside(chains)
    found.of_results(chains)
    by_layout = _writes_what_may_be_a_copy(program) or _may_share(results)
    return Shared(found.given, found.same, found.views, tuple(found.refused), by_layout)


class _Found:
    """`Shared` while it is made."""

    def __init__(self, program: ExportedProgram, paths: Mapping[str, str], names: Sequence[str]) -> None:
        self._specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        self._paths, self._names = paths, names
        self.given: dict[int, str] = {}
        self.same: dict[int, int] = {}
        self.views: dict[int, View] = {}
        self.refused: list[str] = []

    def of_hidden(self, program: ExportedProgram, chains: Mapping[int, _Chain]) -> None:
        """Results that share memory by an op that does not say so: einsum("ij->ji", x)."""
        roots: dict[int, Node] = {}
        for node in program.graph.find_nodes(op="placeholder"):
            if "Tensor" in type(node.meta.get("val")).__name__:
                roots.setdefault(memory_of(node.meta["val"]), node)
        for place, chain in chains.items():
            root = roots.setdefault(memory_of(chain.last.meta["val"]), chain.root)
            if root is not chain.root and chain.root.op != "placeholder":
                name = name_of(chain.root.target)
                self.refused.append(
                    f"{self._names[place]} shares memory with {root.name} by {name}, which does not say so"
                )

    def of_outside(self, chains: Mapping[int, _Chain]) -> None:
        """Results in the memory of arguments and of the module."""
        last: dict[Node, int] = {}
        for place, chain in chains.items():
            spec = self._specs.get(chain.root.name) if chain.root.op == "placeholder" else None
            if spec is None:
                continue
            kind, target = spec.kind.name, spec.target
            is_argument = kind == "USER_INPUT"
            if is_argument and not chain.nodes:
                self.given[place] = self._paths[chain.root.name]
            elif chain.last in last:
                self.same[place] = last[chain.last]
            elif is_argument or kind in {"PARAMETER", "BUFFER"}:
                last[chain.last] = place
                if is_argument:
                    whole: Any = self._paths[chain.root.name]
                    what = f"a view of the argument {whole}"
                else:
                    example = chain.root.meta["val"]
                    whole = (str(target), str(example.dtype).removeprefix("torch."), tuple(example.shape))
                    what = f"the memory of the module's {target}"
                self._view(
                    place, chain, View("argument" if is_argument else "weight", whole, ()), f"is {what}"
                )
            else:
                self.refused.append(f"{self._names[place]} is memory that the module's code holds")

    def of_results(self, chains: Mapping[int, _Chain]) -> None:
        """Results in memory that the program makes."""
        groups: dict[Node, dict[int, _Chain]] = {}
        for place, chain in chains.items():
            if chain.root.op != "placeholder":
                groups.setdefault(chain.root, {})[place] = chain
        for group in (part for whole in groups.values() for part in _apart(whole)):
            first: dict[Node, int] = {}
            for place, chain in group.items():
                if chain.last in first:
                    self.same[place] = first[chain.last]
                else:
                    first[chain.last] = place
            if len(first) > 1:
                self._of_one_memory({place: group[place] for place in first.values()})

    def _of_one_memory(self, group: Mapping[int, _Chain]) -> None:
        root = next(iter(group.values())).root
        whole = next((place for place, chain in group.items() if not chain.nodes), None)
        beside = self._names[next(iter(group))]
        order = order_of(root)
        view = View("result", root, (), whole, order)
        if order is not None:
            back = tuple(order.index(axis) for axis in range(len(order)))
            view = replace(view, steps=() if _is_in_order(order) else (("permute.default", (back,)),))
        for place, chain in group.items():
            what = f"shares memory with {beside if self._names[place] != beside else 'another result'}"
            if order is None:
                self.refused.append(f"{self._names[place]} {what}, which has gaps")
            elif chain.nodes or view.steps:
                self._view(place, chain, view, what)

    def _view(self, place: int, chain: _Chain, view: View, what: str) -> None:
        steps = steps_of(chain.nodes)
        if isinstance(steps, str):
            self.refused.append(
                f"{self._names[place]} {what}, by {steps}, which cannot be done again at a call"
            )
        else:
            self.views[place] = replace(view, steps=(*view.steps, *steps))


def _apart(group: dict[int, _Chain]) -> Iterator[dict[int, _Chain]]:
    """Results of one memory that share it: parts of one tensor, which is no result itself, do not overlap."""
    chains, depth = [*group.values()], 0
    while all(len(one.nodes) > depth for one in chains) and len({one.nodes[depth] for one in chains}) == 1:
        depth += 1
    heads = [one.nodes[depth] if len(one.nodes) > depth else None for one in chains]
    if not all(head is not None and name_of(head.target) == "getitem" for head in heads):
        yield group
        return
    for part in dict.fromkeys(heads):
        yield from _apart(
            {place: one for (place, one), head in zip(group.items(), heads, strict=True) if head is part}
        )


def chain_of(node: Node) -> _Chain:
    """The node that made a tensor's memory, and the view operations that lead from it to the tensor."""
    nodes: list[Node] = []
    last: Node | None = None
    while node.op == "call_function":
        name = name_of(node.target)
        if name == "getitem":
            source: Any = node.args[0]
            if not _gives_memory(source):
                break
            nodes += (node, source)
            last = last or node
            node = source.args[0]
            continue
        if _is_idle(node):
            node = node.args[0]  # type: ignore[assignment]
            continue
        if not _gives_memory(node):
            break
        target: Any = node.target
        if not any(one.alias_info is not None and one.alias_info.is_write for one in target._schema.returns):
            if is_copy(node) and chain_of(node.args[0]).root.op != "placeholder":  # type: ignore[arg-type]
                break
            nodes.append(node)
            last = last or node
        elif name in _CHANGE_SHAPES:
            nodes.append(node)
            last = last or node
        node = node.args[0]  # type: ignore[assignment]
    return _Chain(node, tuple(reversed(nodes)), last or node)


def _gives_memory(node: Node) -> bool:
    """Whether an op's results may lie in the memory of its first argument."""
    target: Any = node.target
    if type(target).__name__ != "OpOverload" or not node.args or name_of(target) in _NEW:
        return False
    return any(one.alias_info is not None for one in target._schema.returns)


_CASTS = frozenset({"to.dtype", "to.dtype_layout", "to.device", "to.other"})
_LAID_OUT = frozenset({
    "contiguous.default", "reshape.default", "reshape_as.default", "flatten.using_ints", "ravel.default",
})  # fmt: skip
"""Ops that copy what has other strides than they need."""
_NEW = frozenset({"lift_fresh.default"})
_CHANGE_SHAPES = frozenset({
    "t_.default", "transpose_.default", "squeeze_.default", "squeeze_.dim", "squeeze_.dims", "unsqueeze_.default",
    "as_strided_.default", "swapaxes_.default", "swapdims_.default", "resize_.default",
})  # fmt: skip


def _is_idle(node: Node) -> bool:
    """Whether an op returns the very tensor that it is given, whatever the strides of that are."""
    name = name_of(node.target)
    if name in {"dropout.default", "feature_dropout.default", "alpha_dropout.default"}:
        return len(node.args) > 2 and not node.args[2]
    if name == "alias.default":
        return ITSELF in (node.meta.get("custom") or {})
    if name == "contiguous.default":
        return not is_copy(node) and chain_of(node.args[0]).root.op != "placeholder"  # type: ignore[arg-type]
    return name in _CASTS and not is_copy(node)


def _writes_what_may_be_a_copy(program: ExportedProgram) -> bool:
    """Whether an op writes to a copy that ops make of what is laid out otherwise than they need, or to that itself."""
    return any(
        any(_may_copy(one) for one in _names_of_memory(cast("Node", node.args[0])))
        for node in program.graph.nodes
        if node.op == "call_function" and _is_write(node.target) and hasattr(node.args[0], "op")
    )


def _may_share(results: Sequence[object]) -> bool:
    """Whether two results are one memory, or two, as an op finds what it lays out.

    Of an argument's views these ops are done again at each call, so they are right unless two results are views of the
    copy.
    """
    ways = [_names_of_memory(cast("Node", one)) for one in dict.fromkeys(results) if hasattr(one, "op")]
    for one, other in itertools.combinations(ways, 2):
        joined = next((node for node in one if node in other), None)
        if joined is None:
            continue
        apart = [*one[: one.index(joined)], *other[: other.index(joined)]]
        again = one[-1].op == "placeholder"
        if any(map(_may_copy, one[one.index(joined) :] if again else apart)):
            return True
    return False


def _names_of_memory(node: Node) -> list[Node]:
    """A tensor and what it is a view of, or a copy where that is laid out otherwise, to what made the memory."""
    found = [node]
    while node.op == "call_function":
        source = node.args[0] if node.args else None
        if name_of(node.target) != "getitem" and not (_gives_memory(node) or _is_idle(node)):
            break
        if not hasattr(source, "op"):
            break
        node = cast("Node", source)
        found.append(node)
    return found


def _may_copy(node: Node) -> bool:
    return node.op == "call_function" and name_of(node.target) in _LAID_OUT


def _is_write(target: object) -> bool:
    """Whether an op writes its first argument."""
    schema = getattr(target, "_schema", None) if type(target).__name__ == "OpOverload" else None
    if schema is None or not schema.arguments:
        return False
    info = schema.arguments[0].alias_info
    return info is not None and bool(info.is_write)


def is_copy(node: Node) -> bool:
    """Whether an op that may return what it is given, or a view of it, makes another tensor."""
    name = name_of(node.target)
    if name not in _CASTS | _LAID_OUT:
        return False
    given, made = (getattr(one, "meta", {}).get("val") for one in (node.args[0], node))
    if given is None or made is None:
        return True
    return memory_of(given) != memory_of(made)


def memory_of(example: torch.Tensor) -> int:
    """What tells the memory of a node's example from that of others."""
    found: int = example.untyped_storage()._cdata
    return found


def order_of(node: Node) -> tuple[int, ...] | None:
    """The axes of a tensor in the order of its memory, the slowest first; None where that has gaps or overlaps."""
    example: Any = node.meta["val"]
    shape, strides = [*map(_hint, example.shape)], [*map(_hint, example.stride())]
    order = sorted(range(len(shape)), key=lambda axis: (-strides[axis], axis))
    if _is_dense(shape, strides, range(len(shape))):
        return tuple(range(len(shape)))
    return tuple(order) if _is_dense(shape, strides, order) else None


def _is_dense(shape: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    """Whether a tensor fills its memory, its axes in this order; sizes of 1 have any stride."""
    expected = 1
    for axis in reversed(order):
        if shape[axis] != 1:
            if strides[axis] != expected:
                return False
            expected *= shape[axis]
    return True


def _is_in_order(order: tuple[int, ...]) -> bool:
    return order == tuple(range(len(order)))


def _hint(size: int | torch.SymInt) -> int:
    """A size, or that of the example: one that is asked for itself would be fixed."""
    if isinstance(size, int):
        return size
    hint: Any = size.node.hint
    return int(hint)


_SHAPES_ALONE = {
    "view_as.default": "view.default", "expand_as.default": "expand.default", "reshape_as.default": "reshape.default",
}  # fmt: skip


def steps_of(nodes: Sequence[Node]) -> tuple[Step, ...] | str:
    """View operations as they are done again at a call; or the name of one that is not."""
    steps: list[Step] = []
    for node in nodes:
        name, arguments = name_of(node.target), _arguments(node)
        if name in _SHAPES_ALONE:
            name, arguments = _SHAPES_ALONE[name], (tuple(node.meta["val"].shape),)
        if arguments is None or name in _CHANGE_SHAPES:
            return name
        note = (node.meta.get("custom") or {}).get(NOTE)
        if note:
            return f"{name} where {note}"
        is_apart = note is not None and name not in {"detach.default", "getitem"}
        steps.append((f"no_grad {name}" if is_apart else name, arguments))
    return tuple(steps)


_OMITTED = object()


def _arguments(node: Node) -> tuple[object, ...] | None:
    """What an op is given after its tensor; None where that is not all numbers, sizes and a dtype."""
    import torch

    def plain(value: object) -> object:
        if isinstance(value, (list, tuple)):
            return tuple(map(plain, value))
        if isinstance(value, torch.fx.Node):
            value = value.meta.get("val")
        if value is None or isinstance(value, (bool, int, torch.SymInt)):
            return value
        return str(value) if isinstance(value, torch.dtype) else _OMITTED

    found = tuple(map(plain, node.args[1:]))
    whole = all(one is not _OMITTED and not (isinstance(one, tuple) and _OMITTED in one) for one in found)
    return found if whole and not node.kwargs else None
