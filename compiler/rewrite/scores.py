"""Finds reductions of scores that are no softmax: f(q @ k^T) @ v and log(sum(exp(f(q @ k^T)))), for any pointwise f.

Such a kernel is grown from the product of queries and keys, an op at a time. No rule looks at two reductions: what was
found before is a call, whose inside the next rule does not see.

    q @ k^T, of two, three, five dims …      -> view(q @ k^T), of a batch and heads
    q @ k^T                                  -> scores(q, k)
    f(scores(q, k, …), x)                    -> scores(q, k, …, x)               f: one pointwise op
    scores(q, k, …) @ v                      -> attention(q, k, v, …)
    log(sum(scores(q, k, …)))                -> logsumexp_of_scores(q, k, …)     where exp is what came last
    log(sum(exp(scores - c)))                -> logsumexp(scores - c)
    logsumexp(x - max(x)) + max(x)           -> logsumexp(x)                     also where infinite maxima count as 0
    logsumexp(scores(q, k, …))               -> logsumexp_of_scores(q, k, …)

Where scores are read as a view of other dims, so is what comes of them. `attention` and `logsumexp_of_scores` are the
forms that have a kernel, with a batch and heads; k and v that are repeated for groups of heads go in as they were
before. What has been grown and becomes neither is put back as it was. No number changes: see `outline`. A kernel's
logarithm of a sum subtracts the maximum also where none was written, so that no exponential overflows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernels_hub.compiler.ir.dims import Dim, floordiv
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.ops import OPS
from kernels_hub.compiler.ir.proofs import proves_equal, proves_le
from kernels_hub.compiler.ir.transform import rebuild
from kernels_hub.compiler.rewrite.engine import Rules
from kernels_hub.compiler.rewrite.heads import batch_of, is_weight, turned_keys, undone, with_four_dims
from kernels_hub.compiler.rewrite.outline import (
    Spelled,
    closed_between,
    composed,
    composite,
    outline_between,
    recognised,
)
from kernels_hub.compiler.rewrite.pattern import Any, Bind, Op, Pattern, Scalar, one_of, through
from kernels_hub.compiler.rewrite.rule import Match, Options, PassResult, Rule

MOST_WIDTH = 256
"""The widest queries, keys and values: a kernel holds rows of them in registers or in the nearest cache."""
MOST_NODES, MOST_OPERANDS = 48, 10

SCORES, TOTAL, TOTAL_OF_SCORES, ATTENTION = "scores", "logsumexp", "logsumexp_of_scores", "attention"
_VIEWS = frozenset({"broadcast", "reshape", "permute"})
_PASSED = {*(row.name for row in OPS.values() if Trait.POINTWISE in row.traits), "call"}
_ONLY_SCALE = _VIEWS | {"matmul", "input", "constant", "mul", "div", "neg", "cast"}


def _found(name: str) -> Pattern:
    """What was found under a name, which nothing else uses."""
    return Op("call", name=name).where(recognised(name)).once()


_VIEWED = through("reshape", _found(SCORES)).once()


def _operands(call: Value) -> dict[str, Value]:
    return dict(zip(call.attrs["callee"].inputs, call.operands, strict=True))


def _scores_among(values: Sequence[Value]) -> tuple[Value, Value] | None:
    """The first value that is scores or a view of them, and these."""
    for value in values:
        scores = value.operands[0] if value.op_name == "reshape" else value
        if composite(scores) == SCORES:
            return value, scores
    return None


# -- the product of queries and keys


def _may_be_scores(product: Value) -> str | None:
    """Why a product is none of queries and keys; None if it may be one."""
    q, turned = product.operands
    if not product.dtype.is_float or product.dtype.bits > 32:
        return f"there is no kernel for scores of {product.dtype}"
    if not _is_narrow(q.shape[-1]):
        return f"queries {q.shape[-1]} wide are not known to be narrower than {MOST_WIDTH}"
    if is_weight(q) or is_weight(turned):
        return "products with weights have better kernels"
    if _scores_among([q]) is not None:
        return f"{q} are scores already"
    return None


def _is_narrow(width: object) -> bool:
    return isinstance(width, int) and width <= MOST_WIDTH


def _has_other_dims(match: Match) -> str | None:
    return "it has four dims" if match.root.rank == 4 else _may_be_scores(match.root)


def _with_four(match: Match) -> Value:
    q, turned = match.root.operands
    batch = batch_of(q)
    keys = with_four_dims(turned_keys(turned), batch).transpose()
    product = match.graph.apply("matmul", with_four_dims(q, batch), keys, **match.root.attrs)
    return product.reshape(match.root.shape)


def _begins(match: Match) -> str | None:
    q, turned = match.root.operands
    if match.root.rank != 4:
        return f"{match.root.type} has not a batch, heads, queries and keys"
    return _may_be_scores(match.root) or closed_between(match.root, {"q": q, "k": _unturned(turned)})


def _begin(match: Match) -> Value:
    q, turned = match.root.operands
    if (key := _unturned(turned)) is not turned:
        return outline_between(match.root, SCORES, {"q": q, "k": key})
    spelled: Spelled = {turned: lambda inputs: inputs["k"].transpose()}
    return outline_between(match.root, SCORES, {"q": q, "k": turned.transpose()}, spelled)


def _unturned(turned: Value) -> Value:
    """Keys before their last two dims were exchanged, and before they were repeated; themselves where they were not."""
    swaps = turned.op_name == "permute" and tuple(turned.attrs["order"]) == (0, 1, 3, 2)
    return _unrepeated(turned.operands[0]) if swaps else turned


def _unrepeated(heads: Value) -> Value:
    """Heads before each was repeated for its group of queries; themselves where they were not."""
    wide = heads.operands[0] if heads.op_name == "reshape" else heads
    if wide.op_name != "broadcast" or wide.rank != 5 or tuple(wide.attrs["axes"]) != (0, 1, 3, 4):
        return heads
    few = wide.operands[0]
    batch, count, *rest = few.shape
    whole = (batch, count * wide.shape[2], *rest)
    return few if len(heads.shape) == 4 and all(map(proves_equal, heads.shape, whole)) else heads


# -- what is done to scores


def _elsewhere(match: Match, value: Value, times: int = 1) -> str | None:
    """Why a value is not for the root alone; None if it is."""
    if match.scope.is_output(value):
        return f"{value} is an output"
    return f"{value} is used elsewhere, too" if match.scope.uses(value) > times else None


def _passes(match: Match) -> str | None:
    """Why scores do not take in a pointwise op; None if they do."""
    root, found = match.root, _scores_among(match.root.operands)
    if found is None:
        return "none of its operands are scores"
    operand, scores = found
    if root.op_name == "call" and (operand is not scores or not _is_pointwise(root.attrs["callee"])):
        return f"{root.attrs['callee'].name} is not pointwise on these dims"
    given = _taken_in(root, operand)
    if len(scores.attrs["callee"].nodes) > MOST_NODES or len(scores.operands) + len(given) > MOST_OPERANDS:
        return "too much is done to the scores"
    why = _elsewhere(match, operand, root.operands.count(operand))
    return why or (_elsewhere(match, scores) if operand is not scores else None)


def _is_pointwise(callee: Graph) -> bool:
    return all(
        Trait.POINTWISE in node.op.traits or node.op.name in _VIEWS or not node.operands
        for node in callee.nodes
    )


def _taken_in(root: Value, scores: Value) -> list[Value]:
    """What else a pointwise op reads, as it was before it was broadcast; but for numbers."""
    found = []
    for value in root.operands:
        if value is not scores:
            while value.op_name in _VIEWS:
                (value,) = value.operands  # noqa: PLW2901 (goes up the chain)
            found += [value] if value.scalar is None else []
    return found


def _take_in(match: Match) -> Value:
    root, found = match.root, _scores_among(match.root.operands)
    assert found is not None
    operand, scores = found
    given, whole = _operands(scores), root
    for value in _taken_in(root, operand):
        if value not in given.values():
            given[f"x{len(given)}"] = value
    if operand is not scores:
        others = (scores if one is operand else undone(operand, one) for one in root.operands)
        whole = match.graph.apply(root.op, *others, **root.attrs)
    return outline_between(whole, SCORES, given).reshape(root.shape)


# -- the product of scores and values


def _weighs(match: Match) -> str | None:
    """Why a product of scores is no attention; None if it is one."""
    view, scores, v, root = match.root.operands[0], match[SCORES], match["v"], match.root
    q, k, *others = scores.operands
    if is_weight(v):
        return f"{v} is a weight: products with weights have better kernels"
    if not _is_narrow(v.shape[-1]):
        return f"values {v.shape[-1]} wide are not known to be narrower than {MOST_WIDTH}"
    if any(one.dtype is not root.dtype for one in (q, k, v)):
        return f"queries, keys and values are not all of {root.dtype}"
    if _values_of(view, scores, v) is None:
        return f"{view.type} and {v.type} are not rows of {scores.type} and their values"
    if not others and all(node.op.name in _ONLY_SCALE for node in scores.attrs["callee"].nodes):
        return "nothing but a scale is between the products, which may be done in another order"
    return None


def _values_of(view: Value, scores: Value, v: Value) -> Callable[[], Value] | None:
    """What makes the values that a view of scores is multiplied by those of the scores; None where nothing does.

    Its rows are those of the scores; or those of all heads of a group, one after the other, whose values have fewer
    heads; or parts of them that are multiplied by the same values.
    """
    batch, heads, queries, _ = scores.shape
    if proves_equal(view.shape[-2], queries):
        return lambda: _unrepeated(with_four_dims(v, (batch, heads)))
    if view.rank < 4 or not proves_equal(view.shape[0], batch):
        return None
    few, rows = view.shape[1], view.shape[-2]
    if view.rank == 4 and isinstance(heads, int) and isinstance(few, int) and few:
        groups, left = divmod(heads, few)
        return (lambda: v) if not left and proves_equal(rows, queries * groups) else None
    shared = v.op_name == "broadcast" and tuple(v.attrs["axes"]) == (0, 1, 3, 4)
    return (lambda: v.operands[0]) if view.rank == 5 and shared and proves_equal(few, heads) else None


def _repeated(few: Value, heads: Dim) -> Value:
    """Each head for its group of queries."""
    batch, count, *rest = few.shape
    if proves_equal(count, heads):
        return few
    return few.broadcast((batch, count, floordiv(heads, count), *rest), (0, 1, 3, 4)).reshape(
        (batch, heads, *rest)
    )


def _weigh(match: Match) -> Value:
    scores, root = match[SCORES], match.root
    heads, values = scores.shape[1], _values_of(root.operands[0], scores, match["v"])
    assert values is not None
    q, k, *others = _operands(scores).items()
    v = values() if not proves_equal(k[1].shape[1], heads) else _repeated(values(), heads)
    given = dict((q, k, ("v", v), *others))
    if len(set(given.values())) < len(given) or not proves_equal(k[1].shape[1], v.shape[1]):
        return root

    def build(inputs: Mapping[str, Value]) -> Value:
        weights = _inside(scores, inputs)
        return weights.graph.apply("matmul", weights, _repeated(inputs["v"], heads), **root.attrs)

    return composed(match.graph, ATTENTION, given, build).reshape(root.shape)


def _inside(scores: Value, inputs: Mapping[str, Value]) -> Value:
    """What scores are, inside of another callee with their operands among its inputs."""
    callee = scores.attrs["callee"]
    (made,) = inputs["q"].graph.call(callee, *(inputs[name] for name in callee.inputs))
    return made


# -- the logarithm of a sum of exponentials


def _of_rows(match: Match, x: Value) -> str | None:
    """Why a sum is not along the keys; None if it is."""
    if tuple(match.fact("axes")) != (x.rank - 1,):
        return f"the sum is along {match.fact('axes')}, not along the keys"
    return None


def _has_kernel(match: Match, view: Value) -> str | None:
    scores = match[SCORES]
    if any(one.dtype is not match.root.dtype for one in scores.operands[:2]):
        return f"queries and keys are not of {match.root.dtype}"
    if not proves_equal(view.shape[-1], scores.shape[-1]):
        return f"rows of {view.type} are no rows of {scores.type}"
    return None


def _of_powers(match: Match) -> str | None:
    """Why a logarithm is not one of a sum of exponentials of scores; None if it is."""
    powers = match["sum"].operands[0]
    (inside,) = match[SCORES].attrs["callee"].outputs.values()
    if inside.op_name != "exp":
        return f"{powers} are no exponentials"
    return _of_rows(match, powers) or _has_kernel(match, powers)


def _total(match: Match, of: Callable[[Value], Value]) -> Value:
    scores = match[SCORES]
    made = composed(
        match.graph, TOTAL_OF_SCORES, _operands(scores), lambda inputs: of(_inside(scores, inputs))
    )
    return made.reshape(match.root.shape)


def _of_shifted(match: Match) -> str | None:
    shifted = match["shifted"]
    if _scores_among(shifted.operands[:1]) is None:
        return f"{shifted.operands[0]} are no scores"
    return _of_rows(match, shifted) or closed_between(match.root, {"x": shifted})


_MOST = through("reshape", Op("reduce_max", Any("x"), axes=Bind("axes")))
_TOP = one_of(
    Op("reduce_max", Any("x"), axes=Bind("axes"), name="top"),
    Op("select", Op("isinf", _MOST), Scalar("", 0.0), _MOST, name="top"),
)
_SHIFTED = Op("sub", Any("x"), Op("broadcast", through("reshape", Any("top")), axes=Bind("kept"), name="row"))


def _by_maximum(match: Match) -> str | None:
    """Why what is subtracted and added again is not the maximum of each row; None if it is."""
    x, row = match["x"], match["row"].operands[0]
    last = x.rank - 1
    if tuple(match.fact("axes")) != (last,):
        return f"the maximum is along {match.fact('axes')}, not along the keys"
    if tuple(match.fact("kept")) != tuple(range(last)) or not all(map(proves_equal, row.shape, x.shape)):
        return "the maximum is broadcast along other dims"
    if match["top"].op_name != "select" and not proves_le(1, x.shape[last]):
        return "there may be no keys, whose sum is no NaN although their maximum is infinite"
    return None


def _unshifted(match: Match) -> Value:
    """Where an infinite maximum was subtracted, rows were NaN: in them, the result is infinite, and made NaN."""
    result = composed(match.graph, TOTAL, {"x": match["x"]}, lambda inputs: _logsumexp(inputs["x"]))
    if match["top"].op_name != "select":
        result = result + (result - result)
    return result.reshape(match.root.shape)


def _logsumexp(x: Value) -> Value:
    top = x.max(-1, keepdims=True)
    finite = top.unary("isinf").select(0.0, top)
    return _log_of_sum((x - finite).unary("exp")) + finite


def _log_of_sum(powers: Value) -> Value:
    return powers.sum(-1, keepdims=True).unary("log")


RULES = (
    Rule("weighed_scores", Op("matmul", _VIEWED, Any("v")), _weigh, _weighs,
         doc="scores(q, k, ...) @ v -> attention(q, k, v, ...)"),
    Rule("product_of_four_dims", Op("matmul"), _with_four, _has_other_dims,
         doc="q @ k^T with two, three, or five and more dims -> with batch and heads"),
    Rule("scores_of_heads", Op("matmul"), _begin, _begins, doc="q @ k^T, of a batch and heads -> scores(q, k)"),
    Rule("logsumexp_of_scores", Op("call", _VIEWED).where(recognised(TOTAL)), lambda match: _total(match, _logsumexp),
         lambda match: _has_kernel(match, match.root.operands[0]),
         doc="logsumexp(scores(q, k, ...)) -> logsumexp_of_scores(q, k, ...)"),
    Rule("scores_through", Op(_PASSED), _take_in, _passes,
         doc="f(scores(q, k, ...), x) -> scores(q, k, ..., x), for pointwise f"),
    Rule("logsumexp_of_powers", Op("log", Op("reduce_sum", _VIEWED, axes=Bind("axes"), name="sum").once()),
         lambda match: _total(match, _log_of_sum), _of_powers,
         doc="log(sum(scores(q, k, ...))), of exponentials -> logsumexp_of_scores(q, k, ...)"),
    Rule("logsumexp",
         Op("log", Op("reduce_sum", Op("exp", Op("sub", name="shifted")).once(), axes=Bind("axes")).once()),
         lambda match: outline_between(match.root, TOTAL, {"x": match["shifted"]}), _of_shifted,
         doc="log(sum(exp(scores - c))) -> logsumexp(scores - c)"),
    Rule("shifted_logsumexp",
         Op("add", through("reshape", Op("call", _SHIFTED).where(recognised(TOTAL)).once()), through("reshape", _TOP)),
         _unshifted, _by_maximum, doc="logsumexp(x - max(x)) + max(x) -> logsumexp(x)"),
)  # fmt: skip
_ENDS = ("weighed_scores", "logsumexp_of_scores", "logsumexp_of_powers")


@dataclass(frozen=True)
class Scores(Rules):
    """The pass: grows kernels of scores; a graph in which none comes about stays as it was."""

    name: str = "scores"
    rules: tuple[Rule, ...] = RULES

    def run(self, graph: Graph, options: Options) -> PassResult:
        """The graph, and how often each rule fired."""
        products = (node.results[0] for node in graph.nodes if node.op.name == "matmul")
        if all(_may_be_scores(product) is not None for product in products):
            return PassResult(graph)
        found = super().run(graph, options)
        if not any(found.fired[name] for name in _ENDS):
            return PassResult(graph)
        return PassResult(rebuild(found.graph, _written_out).graph, found.fired)


def _written_out(graph: Graph, node: Node, operands: tuple[Value, ...]) -> Sequence[Value] | None:
    """What has been grown and became no kernel."""
    if node.op.name == "call" and node.attrs["callee"].name in {SCORES, TOTAL}:
        return graph.call(node.attrs["callee"], *operands)
    return None
