"""Leaves weights of few bits packed where products take them: a fourth or an eighth of what floats take to be read.

    matmul(x, transpose(dequantize(w, scales, zeros)))    reshape(matmul_few_bits(rows of x, w, scales, zeros))

The weight may be spread over the batch of x. All else that takes it gets floats, which `fold_parameters` makes once.
Sums are not rounded otherwise than those of products; the weight is not rounded to the dtype of its scales any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import product
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.rewrite.affine_weights import static
from kernels_hub.compiler.rewrite.contraction import factor_of
from kernels_hub.compiler.rewrite.engine import Rules
from kernels_hub.compiler.rewrite.pattern import Any, Op
from kernels_hub.compiler.rewrite.rule import Match, Options, PassResult, Rule

_DTYPES = frozenset({types.FLOAT32, types.FLOAT16, types.BFLOAT16})
"""Of rows, scales and results, for which there are kernels."""


def _weight(match: Match) -> Value | str:
    """The `dequantize` that the second operand is a transposed view of, or why there is none."""
    w = match["w"]
    factor = factor_of(w)
    if factor.source.op_name != "dequantize":
        return f"{w} is no view of a weight of few bits"
    if factor.axes != (w.rank - 1, w.rank - 2):
        return f"{w} has the columns of {factor.source} along other axes"
    return factor.source


def _declines(match: Match) -> str | None:
    weight = _weight(match)
    if isinstance(weight, str):
        return weight
    for one in (match["x"], weight, match.root):
        if one.dtype not in _DTYPES:
            return f"there is no kernel for {one.dtype}"
    if match.root.attrs["accumulate"] not in {None, types.FLOAT32}:
        return f"sums are kept in {match.root.attrs['accumulate']}"
    return next((reason for one in weight.operands if (reason := static(one)) is not None), None)


def _packed(match: Match) -> Value:
    x, weight, root = match["x"], _weight(match), match.root
    assert isinstance(weight, Value)
    rows = x.reshape((product(x.shape[:-1]), x.shape[-1]))
    bits = weight.attrs["bits"]
    result = match.graph.apply("matmul_few_bits", rows, *weight.operands, bits=bits, dtype=root.dtype)
    return result.reshape(root.shape)


FEW_BITS = (
    Rule(
        "matmul_few_bits",
        Op("matmul", Any("x"), Any("w")),
        _packed,
        _declines,
        exact=False,
        doc="see the module",
    ),
)


@dataclass(frozen=True)
class FewBits:
    """The rule, where there are kernels for it."""

    name: str = "few_bits"

    def run(self, graph: Graph, options: Options) -> PassResult:
        """The graph with packed weights left as they are."""
        if not options.few_bits or not any(node.op.name == "dequantize" for node in graph.live()):
            return PassResult(graph)
        return Rules(self.name, FEW_BITS).run(graph, options)
