"""Recognizes masks by position (causal, windowed), so that attention kernels skip the keys that they hide.

1. A mask that is known to be causal: query i sees keys 0 to i + offset.
2. Any other one that chooses between a score and -inf: it is looked at before attention begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kernels_hub.compiler.ir.dims import Dim, Expr
from kernels_hub.compiler.schedule.index import Loop, linear, row_major
from kernels_hub.compiler.schedule.kernel import (
    Attention,
    Bound,
    Compute,
    Constant,
    Load,
    Position,
    Role,
    Statement,
    Store,
    arguments,
)

_MOST_SCORES = 1 << 24
"""Constant masks larger than this are read and not understood."""


def causal_scores(
    anchor: Attention, scores: Sequence[Statement], score: str
) -> tuple[Dim, tuple[Statement, ...], str] | None:
    """(offset, the statements without the mask, their result), where the last thing done is a causal mask."""
    made = {statement.name: statement for statement in scores if not isinstance(statement, Store)}
    masked = _masked(made, score)
    if masked is None:
        return None
    condition, kept = masked
    offset = _offset(made[condition], anchor.score_loops[2], anchor.score_loops[3], made)
    if offset is None:
        return None
    return offset, _needed(scores, kept), kept


def mask_of(scores: Sequence[Statement], score: str) -> tuple[tuple[Statement, ...], str, bool] | None:
    """(statements, the name of the condition that they compute, whether that is all that happens to a score), where the
    last thing done is a mask that does not depend on the score: what it hides need not be looked at."""
    masked = _masked(
        {statement.name: statement for statement in scores if not isinstance(statement, Store)}, score
    )
    if masked is None:
        return None
    condition, kept = masked
    needed = _needed(scores, condition)
    read = {arg for one in needed for arg in arguments(one)}
    if "score" in read or any(isinstance(one, Bound) for one in needed):
        return None
    return needed, condition, kept == "score"


def _masked(made: Mapping[str, Statement], score: str) -> tuple[str, str] | None:
    """(the condition, the score that it shows), where what it hides is -inf."""
    last = made.get(score)
    if not isinstance(last, Compute) or last.op.name != "select":
        return None
    condition, kept, fill = last.args
    blank = made.get(fill)
    if not isinstance(blank, Constant) or float(blank.value) != -np.inf or condition not in made:
        return None
    return condition, kept


def _offset(statement: Statement, query: Loop, key: Loop, made: Mapping[str, Statement]) -> Dim | None:
    if isinstance(statement, Load):
        return _constant_offset(statement, query, key)
    if not isinstance(statement, Compute) or statement.op.name not in {"le", "lt"}:
        return None
    sides = [made.get(arg) for arg in statement.args]
    if not all(isinstance(side, Position) for side in sides):
        return None
    left, right = (side.place for side in sides if isinstance(side, Position))
    difference = left - right  # <= 0, or < 0
    found = linear(difference, [query.name, key.name])
    if found is None or found[0][key.name] != 1 or found[0][query.name] not in {-1, 0}:
        return None
    if found[0][query.name] == 0 and query.extent != 1:
        return None
    rest = found[1]
    if isinstance(rest, Expr) and any(symbol.name.startswith("$") for symbol in rest.symbols):
        return None
    return -rest if statement.op.name == "le" else -rest - 1


def _constant_offset(load: Load, query: Loop, key: Loop) -> Dim | None:
    """The offset of a mask that is a constant."""
    buffer, extents = load.buffer, (query.extent, key.extent)
    if load.guards or buffer.role is not Role.CONSTANT or buffer.value is None or buffer.value.array is None:
        return None
    found = linear(load.place, [query.name, key.name])
    if (
        found is None
        or buffer.strides != row_major(buffer.shape)
        or not all(isinstance(e, int) for e in extents)
    ):
        return None
    strides, rest = found
    numbers = (rest, strides[query.name], strides[key.name])
    if (
        not all(isinstance(number, int) for number in numbers)
        or not 0 < extents[0] * extents[1] <= _MOST_SCORES
    ):
        return None
    flat = np.asarray(buffer.value.array).reshape(-1)
    places = rest + numbers[1] * np.arange(extents[0])[:, None] + numbers[2] * np.arange(extents[1])
    seen = flat[places] != 0
    counts = seen.sum(1)
    partial = np.flatnonzero((counts > 0) & (counts < extents[1]))
    row = int(partial[0]) if partial.size else 0
    offset = int(counts[row]) - 1 - row
    return offset if np.array_equal(seen, np.tri(*extents, offset, dtype=bool)) else None


def _needed(scores: Sequence[Statement], result: str) -> tuple[Statement, ...]:
    wanted, kept = {result}, []
    for statement in reversed(scores):
        if not isinstance(statement, Store) and statement.name in wanted:
            kept.append(statement)
            wanted.update(arguments(statement))
    return tuple(reversed(kept))
