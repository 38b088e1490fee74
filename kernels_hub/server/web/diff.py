"""The difference between two versions of a file, as hunks of lines; and of two trees, as paths."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

DIFF_LIMIT = 256 * 1024
"""Bytes of a file that is compared line by line."""
LINES_LIMIT = 6000
_MIDDLE_LIMIT = 2500
_CONTEXT = 3


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of a diff: its numbers before and after (None where it is not), kind and text."""

    old: int | None
    new: int | None
    kind: str
    """"same", "added", "removed" or "gap"."""
    text: str


@dataclass(frozen=True, slots=True)
class Pair:
    """A line of a side by side diff; a side that has no such line is None."""

    old: DiffLine | None
    new: DiffLine | None


@dataclass(frozen=True, slots=True)
class TreeChange:
    """A path that is not the same in two trees."""

    path: str
    kind: str
    """"added", "removed" or "changed"."""


def compare_trees(old: Mapping[str, str], new: Mapping[str, str]) -> list[TreeChange]:
    """What changed between two maps of path -> id of its content, by path."""
    return [
        TreeChange(path, "added" if path not in old else "removed" if path not in new else "changed")
        for path in sorted(old.keys() | new.keys())
        if old.get(path) != new.get(path)
    ]


def compare_texts(old: str, new: str) -> list[DiffLine] | None:
    """The changed lines with three lines around them; None where there are too many to compare."""
    before, after = _split(old), _split(new)
    if max(len(before), len(after)) > LINES_LIMIT:
        return None
    head = _common(before, after)
    tail = _common(before[head:][::-1], after[head:][::-1])
    # difflib is quadratic: what is compared is what lies between the first and the last change.
    if min(len(before), len(after)) - head - tail > _MIDDLE_LIMIT:
        return None
    start = max(head - _CONTEXT, 0)
    end = max(tail - _CONTEXT, 0)
    rows: list[DiffLine] = []
    matcher = difflib.SequenceMatcher(
        None, before[start : len(before) - end], after[start : len(after) - end]
    )
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        rows.append(DiffLine(None, None, "gap", _range(group, start)))
        for _, old_from, old_to, new_from, new_to in group:
            rows += _rows(
                before, after, (old_from + start, old_to + start), (new_from + start, new_to + start)
            )
    return rows


def side_by_side(rows: Sequence[DiffLine]) -> Iterator[Pair]:
    """The same rows in two columns: removed lines beside the added ones that follow them."""
    removed: list[DiffLine] = []
    added: list[DiffLine] = []
    for row in [*rows, DiffLine(None, None, "gap", "")]:
        if row.kind == "removed" and not added:
            removed.append(row)
            continue
        if row.kind == "added":
            added.append(row)
            continue
        for index in range(max(len(removed), len(added))):
            yield Pair(
                removed[index] if index < len(removed) else None, added[index] if index < len(added) else None
            )
        removed, added = ([row], []) if row.kind == "removed" else ([], [])
        if row.kind in ("same", "gap") and (row.text or row.kind == "same"):
            yield Pair(row, row)


def _rows(
    before: Sequence[str], after: Sequence[str], old: tuple[int, int], new: tuple[int, int]
) -> Iterator[DiffLine]:
    if before[slice(*old)] == after[slice(*new)]:
        for offset, text in enumerate(before[slice(*old)]):
            yield DiffLine(old[0] + offset + 1, new[0] + offset + 1, "same", text)
        return
    for index in range(*old):
        yield DiffLine(index + 1, None, "removed", before[index])
    for index in range(*new):
        yield DiffLine(None, index + 1, "added", after[index])


def _range(group: Sequence[tuple[str, int, int, int, int]], start: int) -> str:
    _, old_from, _, new_from, _ = group[0]
    _, _, old_to, _, new_to = group[-1]
    return f"@@ -{old_from + start + 1},{old_to - old_from} +{new_from + start + 1},{new_to - new_from} @@"


def _split(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    count = 0
    for name, other in zip(first, second, strict=False):
        if name != other:
            break
        count += 1
    return count
