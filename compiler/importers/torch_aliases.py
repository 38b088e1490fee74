"""Which results of an exported program share memory with its arguments, with weights, or with each other.

What a caller writes into such a result, eager has written elsewhere as well. A program makes its results anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kernels_hub.compiler.importers.torch_direct import name_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node


@dataclass(frozen=True)
class Shared:
    """What results are. Numbers are places among the leaves of the result.

    given: result -> the argument that it is, by path. same: result -> the earlier result that it is.
    views: what is none of these and yet shares memory, in words; each names a result.
    """

    given: Mapping[int, str] = field(default_factory=dict)
    same: Mapping[int, int] = field(default_factory=dict)
    views: tuple[str, ...] = ()


def shared_results(program: ExportedProgram, paths: Mapping[str, str], names: list[str]) -> Shared:
    """What the results share. paths: placeholders that are arguments -> their paths; names: of the results."""
    (end,) = program.graph.find_nodes(op="output")
    kinds = [spec.kind.name for spec in program.graph_signature.output_specs]
    results = [value for value, kind in zip(end.args[0], kinds, strict=True) if kind == "USER_OUTPUT"]
    inputs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    given: dict[int, str] = {}
    same: dict[int, int] = {}
    views: list[str] = []
    first: dict[Node, tuple[int, bool]] = {}
    for place, (value, name) in enumerate(zip(results, names, strict=True)):
        if not hasattr(value, "op") or "Tensor" not in type(value.meta.get("val")).__name__:
            continue
        root, is_itself = root_of(value)
        spec = inputs.get(root.name) if root.op == "placeholder" else None
        if spec is not None and spec.kind.name == "USER_INPUT":
            if is_itself:
                given[place] = paths[root.name]
            else:
                views.append(f"{name} is a view of the argument {paths[root.name]}")
        elif spec is not None and spec.kind.name in {"PARAMETER", "BUFFER"}:
            views.append(f"{name} is the memory of the module's {spec.target}")
        elif root not in first:
            first[root] = (place, is_itself)
        elif is_itself and first[root][1]:
            same[place] = first[root][0]
        else:
            views.append(f"{name} shares memory with {names[first[root][0]]}")
    return Shared(given, same, tuple(views))


def root_of(node: Node) -> tuple[Node, bool]:
    """The node that made a tensor's memory, and whether the tensor is that node's result itself, not a view of it."""
    is_itself = True
    while node.op == "call_function":
        target: Any = node.target
        if getattr(target, "__name__", "") == "getitem":
            inner, _ = root_of(node.args[0])  # type: ignore[arg-type]
            if inner.op != "placeholder":
                return node, is_itself  # parts of one tensor do not overlap
            node, is_itself = inner, False
            continue
        if type(target).__name__ != "OpOverload" or not node.args:
            return node, is_itself
        if not _is_idle(node):
            if all(one.alias_info is None for one in target._schema.returns) or _is_copy(node):
                return node, is_itself
            is_itself = is_itself and any(
                one.alias_info is not None and one.alias_info.is_write for one in target._schema.returns
            )
        node = node.args[0]  # type: ignore[assignment]
    return node, is_itself


_CASTS = frozenset({"contiguous.default", "to.dtype", "to.dtype_layout", "to.device", "to.other"})


def _is_idle(node: Node) -> bool:
    """Whether an op returns the very tensor that it is given."""
    name = name_of(node.target)
    if name in {"dropout.default", "feature_dropout.default", "alpha_dropout.default"}:
        return len(node.args) > 2 and not node.args[2]
    return name in _CASTS and not _is_copy(node)


def _is_copy(node: Node) -> bool:
    """Whether an op that may return what it is given makes another tensor."""
    examples: list[Any] = [getattr(one, "meta", {}).get("val") for one in (node.args[0], node)]
    given, made = examples
    return name_of(node.target) in _CASTS and (
        given is None
        or given.dtype != made.dtype
        or given.device != made.device
        or given.stride() != made.stride()
    )
