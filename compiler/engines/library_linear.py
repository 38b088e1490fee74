"""Linear layers in a graph: x @ weight + bias, and an activation, as one call.

A product with a matrix that is broadcast along the batch is one product of all rows; a bias along the last dim, and
silu or the tanh GELU, join it where nothing else reads what is between. On a CPU, float32 weights that are known
are laid out anew for oneDNN once, which multiplies about twice as fast as MKL where MKL is slow, and starts later:
so small products stay with MKL. oneDNN's ReLU and its erf GELU are not used: NaN and infinity come out otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels_hub.compiler.engines.library_ops.composites import composite_kernel
from kernels_hub.compiler.engines.library_ops.site import NATIVE_FLOATS
from kernels_hub.compiler.ir.graph import Graph, Node, Value

FEW_ROWS = 16
LEAST_FOR_FEW, LEAST_FOR_MANY = 700_000, 6_000_000
"""Multiplications from which oneDNN is faster, measured on Zen 4 with two threads: see `layers/packing`."""

_POST = {"": ("none", ""), "silu": ("swish", ""), "gelu_tanh": ("gelu", "tanh")}
_THEN: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": lambda x: F.silu(x, inplace=True),
    "gelu_tanh": lambda x: torch.ops.aten.gelu_(x, approximate="tanh"),
}


class Joined(Protocol):
    """Nodes that run as one: root is the last of them, operands what they read."""

    @property
    def root(self) -> Node: ...  # noqa: D102
    @property
    def nodes(self) -> tuple[Node, ...]: ...  # noqa: D102
    @property
    def operands(self) -> tuple[Value, ...]: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class Linear:
    """activation(x @ weight + bias); x (…, K), weight (K, N), bias (N,). nodes: all that it stands for."""

    x: Value
    weight: Value
    bias: Value | None
    activation: str
    nodes: tuple[Node, ...]

    @property
    def root(self) -> Node:
        """The node whose result it is."""
        return self.nodes[-1]

    @property
    def operands(self) -> tuple[Value, ...]:
        """x, weight and bias."""
        return (self.x, self.weight) if self.bias is None else (self.x, self.weight, self.bias)


def find_linears(graph: Graph) -> dict[Node, Linear]:
    """The linear layers of a graph, by root."""
    found = (_linear(graph, node) for node in graph.live() if node.op.name == "matmul")
    return {one.root: one for one in found if one is not None}


def _linear(graph: Graph, node: Node) -> Linear | None:
    x, weight = node.operands
    rank = x.rank
    if weight.op_name == "broadcast" and weight.attrs["axes"] == (rank - 2, rank - 1):
        (weight,) = weight.operands
    plain = {x.dtype, weight.dtype, node.results[0].dtype, node.attrs["accumulate"] or x.dtype} == {x.dtype}
    if weight.rank != 2 or not plain or x.dtype.name not in NATIVE_FLOATS:
        return None
    nodes, bias = [node], None
    added = only_reader(graph, node)
    if added is not None and added.op.name == "add":
        other = next((operand for operand in added.operands if operand is not node.results[0]), None)
        if other is not None and other.op_name == "broadcast" and other.attrs["axes"] == (rank - 1,):
            (bias,) = other.operands
            nodes.append(added)
    after = only_reader(graph, nodes[-1])
    activation = ""
    if after is not None and _is_activation(after):
        activation = after.attrs["callee"].name
        nodes.append(after)
    return Linear(x, weight, bias, activation, tuple(nodes))


def _is_activation(node: Node) -> bool:
    if node.op.name != "call" or len(node.operands) != 1 or node.attrs["callee"].name not in _THEN:
        return False
    return composite_kernel(node, "cpu") is not None


def only_reader(graph: Graph, node: Node) -> Node | None:
    """The node that alone reads a node's result, once; None where there are others, or it is an output."""
    (value,) = node.results
    return value.users[0] if len(value.users) == 1 and graph.uses(value) == 1 else None


def needed(graph: Graph, joined: Mapping[Node, Joined]) -> list[Node]:
    """Nodes that are run, in order, those that are joined by their roots."""
    wanted: set[Node] = {value.node for value in (*graph.outputs.values(), *graph.inputs.values())}
    order = graph.live()
    for node in reversed(order):
        if node not in wanted:
            continue
        operands = joined[node].operands if node in joined else node.operands
        wanted.update(operand.node for operand in operands)
        if graph.definers:
            wanted.update(
                graph.definers[symbol.name] for symbol in node.symbols() if symbol.name in graph.definers
            )
    return [node for node in order if node in wanted]


def linear_kernel(
    linear: Linear, weight: Tensor | None, device: torch.device, *, pack: bool = True
) -> Callable[..., Tensor]:
    """A function of x, weight and bias. weight: its values, where they never change; pack: whether to lay them out."""
    then = _THEN.get(linear.activation)

    def dense(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        result = F.linear(x, w.t(), bias)
        return result if then is None else then(result)

    if weight is None or not pack or not _packs(linear, weight, device):
        return dense
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.t().contiguous(), None)
    attribute, algorithm = _POST[linear.activation]
    inner, columns = weight.shape

    def run(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        elements = x.numel()
        if elements * columns < (LEAST_FOR_FEW if elements <= FEW_ROWS * inner else LEAST_FOR_MANY):
            return dense(x, w, bias)
        return torch.ops.mkldnn._linear_pointwise.default(  # type: ignore[no-any-return]
            x.contiguous(), packed, bias, attribute, [], algorithm
        )

    return run


def _packs(linear: Linear, weight: Tensor, device: torch.device) -> bool:
    """Whether oneDNN may be faster for some number of rows."""
    if device.type != "cpu" or weight.dtype is not torch.float32 or not weight.numel():
        return False
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")):
        return False
    rows = linear.x.type.size
    work = rows * weight.shape[1] if isinstance(rows, int) else LEAST_FOR_MANY
    return work >= LEAST_FOR_FEW
