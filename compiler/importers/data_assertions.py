"""Assertions on data in a traced program, as a condition of the graph.

    torch._assert_async(mask.any())                 aten._assert_async(any)
    torch._check_tensor_all(x >= 0)                 _assert_scalar(sym_ite(item(_is_all_true(ge)), 1, 0) == 1)

What runs the graph looks at the condition, and leaves a call that breaks it to the original, which raises what PyTorch
raises. Assertions on sizes are no matter of this module.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kernels_hub.compiler.importers.torch_direct import name_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Graph, Node

    from kernels_hub.compiler.ir.graph import Value

ASSERTIONS = "(assertions)"
"""The output of a graph that tells whether they all hold, a 0-d bool."""
_READS = ("item.default", "_local_scalar_dense.default")
_OPERATORS: Mapping[str, Callable[..., Any]] = {
    **{one.__name__: one for one in (operator.ge, operator.le, operator.gt, operator.lt)},
    **{one.__name__: one for one in (operator.add, operator.sub, operator.mul, operator.and_, operator.or_)},
    "eq": lambda a, b: a.eq(b) if hasattr(a, "eq") else b.eq(a),
    "ne": lambda a, b: (a.eq(b) if hasattr(a, "eq") else b.eq(a)).eq(False),
    "sym_not": lambda a: a.eq(False),
    "sym_ite": lambda a, b, c: a.cast("int64") * (b - c) + c,
}
"""Of numbers that were read from tensors, by the names of Python's and of torch's functions."""


@contextmanager
def assertions_kept(program: ExportedProgram) -> Iterator[None]:
    """While it is open, assertions have messages: PyTorch's passes drop those without one as dead code."""
    import torch

    bare, named = torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg
    nodes = [node for node in program.graph.nodes if node.target is bare]
    for node in nodes:
        node.target, node.args = named, (node.args[0], "")
    try:
        yield
    finally:
        for node in nodes:
            node.target, node.args = bare, node.args[:1]


def only_asserted(graph: Graph) -> set[Node]:
    """Assertions on data, and the numbers that nothing else takes."""
    import torch

    found: set[Any] = {node for node in graph.nodes if name_of(node.target).startswith("_assert_async.")}
    candidates: set[Any] = set()
    for node in graph.nodes:
        if node.op == "call_function" and not isinstance(node.meta.get("val"), torch.Tensor):
            inputs = node.all_input_nodes
            if name_of(node.target) in _READS or (inputs and all(one in candidates for one in inputs)):
                candidates.add(node)
    for node in reversed(list(graph.nodes)):
        is_assertion = name_of(node.target) == "_assert_scalar.default"
        if node in candidates and (is_assertion or (node.users and all(one in found for one in node.users))):
            found.add(node)
    # A number that is a size as well has its facts in a symbol.
    while loose := {
        node
        for node in found
        if not name_of(node.target).startswith("_assert_async.")
        and name_of(node.target) not in _READS
        and not all(one in found for one in node.all_input_nodes)
    }:
        found -= loose
    return found


def condition(node: Node, value_of: Callable[[Node], Value]) -> Value:
    """What an assertion on data asserts, a 0-d bool. Raises KeyError for an operator that is not known here."""
    import torch

    (tested, *_) = node.args

    def computed(one: Any) -> Any:
        if not isinstance(one, torch.fx.Node):
            return one
        if isinstance(one.meta.get("val"), torch.Tensor):
            return value_of(one).reshape(())
        if name_of(one.target) in _READS:
            (read,) = one.all_input_nodes
            value = value_of(read).reshape(())
            return value if value.dtype.name == "bool" or not value.dtype.is_integer else value.cast("int64")
        return _OPERATORS[getattr(one.target, "__name__", str(one.target))](*map(computed, one.args))

    value: Value = computed(tested)
    return value if value.dtype.name == "bool" else value.eq(0).eq(False)
