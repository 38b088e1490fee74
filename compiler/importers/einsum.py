"""`einsum`: sums of products by index letters, as ONNX and PyTorch spell them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.ir.graph import Value


def einsum(equation: str, values: Sequence[Value]) -> Value:
    """Each operand's diagonals taken and dims put in one order, multiplied one after the other, then summed.

    Two operands that share a summed index are a matmul over it. Raises ValueError for another number of operands than
    the equation has.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(values):
        raise ValueError(f"the equation has {len(terms)} operands, the node {len(values)}")
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
        parts[:2] = [_product(a, first, b, second, later, wanted)]
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
    a: Value, first: list[str], b: Value, second: list[str], later: set[str], wanted: list[str]
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
    if not summed:
        left = a.permute(*(first.index(one) for one in (*batch, *rows)))
        right = b.permute(*(second.index(one) for one in (*batch, *columns)))
        count, inner = len(batch), [1] * len(rows)
        left = left.reshape((*left.shape, *[1] * len(columns)))
        right = right.reshape((*right.shape[:count], *inner, *right.shape[count:]))
        return left * right, [*batch, *rows, *columns]
    if set(rows) <= set(wanted) and not _are_neighbours(rows, first):
        rows.sort(key=wanted.index)
    a = a.permute(*(first.index(one) for one in (*batch, *rows, *summed)))
    b = b.permute(*(second.index(one) for one in (*batch, *summed, *columns)))
    a = a.broadcast_to(tuple(sizes[one] for one in (*batch, *rows, *summed)))
    b = b.broadcast_to(tuple(sizes[one] for one in (*batch, *summed, *columns)))
    dims = [[sizes[one] for one in part] for part in (batch, rows, summed, columns)]
    # rows stay dims of their own where merging them would copy a matrix for each of the batch
    apart = dims[1][:-1] if batch and not _are_neighbours(rows, first) else []
    m, k, n = product(dims[1][len(apart) :]), product(dims[2]), product(dims[3])
    outer = (*dims[0], *apart)
    axes = (*range(len(batch)), len(outer), len(outer) + 1)
    spread = b.reshape((*dims[0], k, n)).broadcast((*outer, k, n), axes)
    result = a.reshape((*outer, m, k)).matmul(spread)
    return result.reshape((*dims[0], *dims[1], *dims[3])), [*batch, *rows, *columns]


def _are_neighbours(names: list[str], letters: list[str]) -> bool:
    """Whether these indices stand side by side in an operand."""
    places = [letters.index(name) for name in names]
    return all(after == before + 1 for before, after in pairwise(places))
