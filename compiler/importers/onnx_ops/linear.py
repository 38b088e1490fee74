# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Matrix products, einsum, determinants."""

from __future__ import annotations

from functools import reduce

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.ir.graph import Value


@onnx_op("MatMul", since=1)
def matmul(node: OnnxNode) -> Value:
    return node.input(0).matmul(node.input(1))


@onnx_op("Gemm", since=1)
def gemm(node: OnnxNode) -> Value:
    a, b, c = node.input(0), node.input(1), node.optional(2)
    if node.attr("transA", 0):
        a = a.transpose()
    if node.attr("transB", 0):
        b = b.transpose()
    result = a.matmul(b)
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    result = result if alpha == 1.0 else _scaled(result, alpha)
    if c is None or beta == 0.0:
        return result
    c = c if beta == 1.0 else _scaled(c, beta)
    return result + c.broadcast_to(result.shape)


def _scaled(x: Value, factor: float) -> Value:
    if x.dtype.is_float:
        return x * factor
    return (x.cast(types.FLOAT64) * factor).cast(x.dtype)


@onnx_op("Einsum", since=12)
def einsum(node: OnnxNode) -> Value:
    """Each operand's diagonals taken and dims put in one order, multiplied one after the other, then summed.

    Two operands that share a summed index are a matmul over it.
    """
    values = node.all_inputs()
    left, arrow, right = node.attr("equation").replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(values):
        raise node.refuse(f"the equation has {len(terms)} operands, the node {len(values)}")
    spelled = [_letters(term, value.rank) for term, value in zip(terms, values, strict=True)]
    if not arrow:
        every = "".join(terms).replace("...", "")
        right = "..." * ("..." in left) + "".join(sorted(one for one in set(every) if every.count(one) == 1))
    longest = max((sum(letter.isdigit() for letter in letters) for letters in spelled), default=0)
    result = [str(longest - 1 - index) for index in range(longest)] if "..." in right else []
    wanted = _expanded(right, result)
    parts = [_diagonals(value, letters) for value, letters in zip(values, spelled, strict=True)]
    while len(parts) > 1:
        (a, first), (b, second) = parts[:2]
        later = {letter for _, letters in parts[2:] for letter in letters} | set(wanted)
        parts[:2] = [_product(a, first, b, second, later)]
    value, letters = parts[0]
    gone = [index for index, letter in enumerate(letters) if letter not in wanted]
    value = value.sum(gone) if gone else value
    letters = [letter for letter in letters if letter in wanted]
    return value.permute(*(letters.index(one) for one in wanted))


def _letters(term: str, rank: int) -> list[str]:
    """An index for each dim; those of the ellipsis are digits, counted from the last."""
    named = len(term.replace("...", ""))
    return _expanded(term, [str(rank - named - 1 - index) for index in range(rank - named)])


def _expanded(term: str, ellipsis: list[str]) -> list[str]:
    before, dots, after = term.partition("...")
    return [*before, *(ellipsis if dots else []), *after]


def _diagonals(value: Value, letters: list[str]) -> tuple[Value, list[str]]:
    while len(set(letters)) < len(letters):
        one = next(letter for letter in letters if letters.count(letter) > 1)
        first, second = [index for index, other in enumerate(letters) if other == one][:2]
        size = value.shape[first]
        strides: list[Dim] = [product(value.shape[axis + 1 :]) for axis in range(value.rank)]
        strides[first] = strides[first] + strides[second]
        del strides[second]
        shape = (*value.shape[:second], *value.shape[second + 1 :])
        value = value.apply(
            "strided", value, shape=(*shape[:first], size, *shape[first + 1 :]), strides=strides
        )
        letters = [*letters[:second], *letters[second + 1 :]]
    return value, letters


def _product(
    a: Value, first: list[str], b: Value, second: list[str], later: set[str]
) -> tuple[Value, list[str]]:
    batch = [name for name in first if name in second and name in later]
    summed = [name for name in first if name in second and name not in later]
    rows = [name for name in first if name not in second]
    columns = [name for name in second if name not in first]
    sizes = {
        letter: dim
        for letters, value in ((first, a), (second, b))
        for letter, dim in zip(letters, value.shape, strict=True)
    }
    for letters, value in ((first, a), (second, b)):
        for one, dim in zip(letters, value.shape, strict=True):
            if sizes[one] == 1 and dim != 1:
                sizes[one] = dim
    a = a.permute(*(first.index(one) for one in (*batch, *rows, *summed)))
    b = b.permute(*(second.index(one) for one in (*batch, *summed, *columns)))
    a = a.broadcast_to(tuple(sizes[one] for one in (*batch, *rows, *summed)))
    b = b.broadcast_to(tuple(sizes[one] for one in (*batch, *summed, *columns)))
    dims = [[sizes[one] for one in part] for part in (batch, rows, summed, columns)]
    m, k, n = (product(part) for part in dims[1:])
    result = a.reshape((*dims[0], m, k)).matmul(b.reshape((*dims[0], k, n)))
    return result.reshape((*dims[0], *dims[1], *dims[3])), [*batch, *rows, *columns]


@onnx_op("Det", since=11)
def det(node: OnnxNode) -> Value:
    """By elimination with the greatest pivot of each column, written out for the size at hand."""
    x = node.input(0)
    size = x.shape[-1]
    if not isinstance(size, int) or size > 16:
        raise node.refuse(f"determinants are written out for matrices of a known size up to 16, not {x.type}")
    batch = x.shape[:-2]
    factors: list[Value] = []
    rest = x
    for left in range(size, 0, -1):
        column = rest.slice(-1, 0, 1)
        pivot = column.unary("abs").along("argmax", -2).unsqueeze(-1)
        at = x.graph.iota(left).reshape((left, 1)).broadcast_to((*batch, left, 1))
        chosen = at.eq(pivot)
        row = chosen.select(rest, 0.0).sum(-2, keepdims=True)
        head = row.slice(-1, 0, 1)
        moved = chosen.select(rest.slice(-2, 0, 1), rest)
        swapped = pivot.ne(0).select(head.like(-1.0), head.like(1.0))
        factors.append((head * swapped).reshape(batch))
        if left > 1:
            below = moved.slice(-2, 1, left)
            ratio = head.eq(0.0).select(0.0, below.slice(-1, 0, 1) / head)
            rest = (below - ratio * row).slice(-1, 1, left)
    return reduce(lambda a, b: a * b, factors) if factors else x.graph.full(batch, 1.0, x.dtype)
