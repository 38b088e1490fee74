"""Recognised parts (calls made by `rewrite.outline`) as PyTorch's fused functions.

`composite_kernel(node, device)` is the kernel of a call where one computes what the callee spells out: the callee is
looked at, not believed by its name. Where constants are others than the function's (rounded to a narrower type, say),
where a mask means something else than PyTorch's, or where a shape is none that it takes, there is none, and the
callee runs as written. Results differ from the callee's by rounding: fused functions round once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels_hub.compiler.engines.library_ops.attention import attention
from kernels_hub.compiler.engines.library_ops.site import NATIVE_FLOATS, LibraryKernel, Run, Site
from kernels_hub.compiler.engines.library_ops.views import KERNELS as VIEWS
from kernels_hub.compiler.ir.graph import Graph, Node, Value

Make = Callable[[Site], Run]
Recognise = Callable[[Node, Graph], Make | None]

_PRECISION = {"float64": 1e-12, "float32": 1e-6, "float16": 1e-3, "bfloat16": 4e-3}
"""How far, relatively, a constant of a callee may be from the function's: what its own dtype rounds away."""

_QUIET = frozenset({"input", "constant", "broadcast", "reshape", "cast"})


def composite_kernel(node: Node, device: str) -> LibraryKernel | None:  # noqa: ARG001  (the same on every device so far)
    """The fused kernel of a call; None where the callee is to be run as written."""
    callee: Graph = node.attrs["callee"]
    recognise = _COMPOSITES.get(callee.name)
    if recognise is None or len(callee.outputs) != 1 or not node.operands:
        return None
    if any(operand.dtype.name not in NATIVE_FLOATS | {"bool"} for operand in node.operands):
        return None
    make = recognise(node, callee)
    return None if make is None else LibraryKernel(make)


def _census(callee: Graph) -> Counter[str]:
    """How often each op that computes something is there."""
    return Counter(node.op.name for node in callee.nodes if node.op.name not in _QUIET)


def _constants_among(callee: Graph, numbers: tuple[float, ...]) -> bool:
    for node in callee.nodes:
        if node.op.name != "constant":
            continue
        array = node.attrs["value"].array
        if array.size != 1:
            return False
        number, close = float(array.item()), _PRECISION.get(array.dtype.name, 0.0)
        if not any(math.isclose(number, one, rel_tol=close) for one in numbers):
            return False
    return True


# -- activations, and gates with them


@dataclass(frozen=True)
class _Activation:
    """function: PyTorch's. root: the one function of a float in it. numbers: constants of its spellings."""

    function: Callable[[Tensor], Tensor]
    roots: tuple[str, ...]
    numbers: tuple[float, ...]


def _gelu(x: Tensor) -> Tensor:
    """As F.gelu, which on a CPU asks oneDNN for contiguous tensors, and that gives NaN of infinity.

    PyTorch's own kernel serves for the same memory seen in columns, and gives infinity.
    """
    if x.device.type != "cpu" or not x.is_contiguous():
        return F.gelu(x)
    rows = x.reshape(-1, x.shape[-1]) if x.numel() and x.dim() > 1 else x.reshape(1, -1)
    if 1 not in rows.shape:
        return F.gelu(rows.t()).t().view(x.shape)
    return torch.where(x == math.inf, x, F.gelu(x))


_TANH = math.sqrt(2 / math.pi)
_ACTIVATIONS = {
    "gelu": _Activation(_gelu, ("erf",), (0.5, 2, 1, math.sqrt(0.5), math.sqrt(2))),
    "gelu_tanh": _Activation(
        lambda x: F.gelu(x, approximate="tanh"),
        ("tanh",),
        (0.5, 2, 1, 3, 0.044715, _TANH, 1 / _TANH, 1 / 0.044715),
    ),
    "silu": _Activation(F.silu, ("sigmoid", "exp"), (1,)),
    "gelu_quick": _Activation(
        lambda x: x * torch.sigmoid(1.702 * x), ("sigmoid", "exp"), (1, 1.702, 1 / 1.702)
    ),
}
_ARITHMETIC = frozenset({"add", "mul", "div", "neg", "pow"})


def _is_activation(callee: Graph, activation: _Activation) -> bool:
    census = _census(callee)
    roots = [name for name in census if name not in _ARITHMETIC]
    return (
        len(roots) == 1
        and roots[0] in activation.roots
        and census[roots[0]] == 1
        and census["mul"] + census["div"] > 0
        and _constants_among(callee, activation.numbers)
    )


def _recognise_activation(name: str) -> Recognise:
    one = _ACTIVATIONS[name]

    def recognise(_: Node, callee: Graph) -> Make | None:
        if list(callee.inputs) != ["x"] or not _is_activation(callee, one):
            return None
        return lambda _: one.function

    return recognise


def _gated(name: str) -> Recognise:
    one = _ACTIVATIONS[name]

    def recognise(_: Node, callee: Graph) -> Make | None:
        root = next(iter(callee.outputs.values()))
        if list(callee.inputs) != ["gate", "up"] or not _is_activation(callee, one):
            return None
        if root.op_name != "mul" or not any(operand is callee.inputs["up"] for operand in root.operands):
            return None
        return lambda _: lambda gate, up: one.function(gate).mul_(up)

    return recognise


# -- norms


def _norm(*, centred: bool) -> Recognise:
    def recognise(node: Node, callee: Graph) -> Make | None:
        eps, along = _eps(node, callee), _statistics(callee, centred=centred)
        if eps is None or along is None or (not centred and "bias" in callee.inputs):
            return None
        rank = node.operands[0].rank
        if along != tuple(range(rank - len(along), rank)):
            return None
        return lambda site: _make_norm(site, len(along), eps, centred=centred)

    return recognise


def _eps(node: Node, callee: Graph) -> float | None:
    """The number that keeps the root from zero; None where it is none, or operands are not those of a norm."""
    x, *others = node.operands
    if list(callee.inputs) not in _NORM_OPERANDS:
        return None
    if (
        any(other.dtype is not x.dtype for other in (node.results[0], *others[1:]))
        or others[0].scalar is None
    ):
        return None
    return float(others[0].scalar)


def _statistics(callee: Graph, *, centred: bool) -> tuple[int, ...] | None:
    """The axes that mean and variance (or the mean of squares) are over."""
    axes = {node.attrs["axes"] for node in callee.nodes if node.op.name in {"reduce_mean", "reduce_sum"}}
    census = _census(callee)
    if len(axes) != 1 or census["sub"] != (1 if centred else 0) or census["sqrt"] + census["rsqrt"] != 1:
        return None
    if census["reduce_mean"] + census["reduce_sum"] != 1 + centred:
        return None
    return next(iter(axes))  # type: ignore[no-any-return]


def _group_norm(node: Node, callee: Graph) -> Make | None:
    eps, along = _eps(node, callee), _statistics(callee, centred=True)
    x = callee.inputs.get("x")
    split = [node.results[0] for node in callee.nodes if node.op.name == "reshape" and node.operands[0] is x]
    if eps is None or along is None or x is None or len(split) != 1:
        return None
    (grouped,) = split
    groups = grouped.shape[1] if grouped.rank > 2 else None
    if (
        not isinstance(groups, int)
        or along != tuple(range(2, grouped.rank))
        or grouped.shape[0] != x.shape[0]
    ):
        return None

    def run(values: Tensor, _: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        return F.group_norm(values, groups, weight, bias, eps)

    return lambda _: run


_NORM_OPERANDS = (["x", "eps"], ["x", "eps", "weight"], ["x", "eps", "weight", "bias"])


def _make_norm(site: Site, dims: int, eps: float, *, centred: bool) -> Run:
    shape = site.operand_shape(0)[site.rank - dims :]
    whole = all(operand.rank == dims for operand in site.node.operands[2:])

    def bare(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        if centred:
            return F.layer_norm(x, shape, weight, bias, eps)
        return F.rms_norm(x, shape, weight, eps)

    def run(x: Tensor, _: Tensor, *affine: Tensor) -> Tensor:
        if whole:
            return bare(x, *affine)
        result = bare(x)
        if affine:
            result = result * affine[0]
        return result + affine[1] if len(affine) > 1 else result

    return run


# -- rotary embedding


def _rotary(_: Node, callee: Graph) -> Make | None:
    census = _census(callee)
    expected = Counter({"add": 1, "mul": 2, "concat": 1, "neg": 1, "slice": 2})
    if list(callee.inputs) != ["x", "cos", "sin"] or census != expected:
        return None
    x, cos, sin = callee.inputs.values()
    root = next(iter(callee.outputs.values()))
    straight = _product_with(root, x)
    turned = (
        None if straight is None else next(operand for operand in root.operands if operand is not straight[0])
    )
    if straight is None or turned is None or turned.op_name != "mul":
        return None
    concat = next((operand for operand in turned.operands if operand.op_name == "concat"), None)
    if concat is None or concat.operands[0].op_name != "neg":
        return None
    tables = straight[1], next(operand for operand in turned.operands if operand is not concat)
    if _before_broadcast(tables[0]) is not cos or _before_broadcast(tables[1]) is not sin:
        return None
    return lambda site: _make_rotary(site, tables)


def _product_with(root: Value, x: Value) -> tuple[Value, Value] | None:
    """The product with x itself that is an operand of the root, and its other factor."""
    for operand in root.operands:
        if operand.op_name == "mul" and x in operand.operands:
            return operand, next(factor for factor in operand.operands if factor is not x)
    return None


def _before_broadcast(value: Value) -> Value:
    return value.operands[0] if value.op_name == "broadcast" else value


def _make_rotary(site: Site, tables: tuple[Value, Value]) -> Run:
    half = site.operand_shape(0)[-1] // 2
    spread_cos, spread_sin = (_spread(site, table) for table in tables)

    def run(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        sines = spread_sin(sin)
        result: Tensor = x * spread_cos(cos)
        result[..., :half].addcmul_(x[..., half:], sines[..., :half], value=-1)
        result[..., half:].addcmul_(x[..., :half], sines[..., half:])
        return result

    return run


def _spread(site: Site, table: Value) -> Run:
    if table.op_name != "broadcast":
        return lambda x: x
    return VIEWS["broadcast"].make(Site(table.node, site.device, site.sizes))


def _attention(node: Node, callee: Graph) -> Make | None:
    found = attention(node, callee)
    return None if found is None else found.make


_COMPOSITES: dict[str, Recognise] = {
    **{name: _recognise_activation(name) for name in _ACTIVATIONS},
    **{f"gated_{name}": _gated(name) for name in _ACTIVATIONS},
    "layer_norm": _norm(centred=True),
    "rms_norm": _norm(centred=False),
    "group_norm": _group_norm,
    "rotary": _rotary,
    "attention": _attention,
}
