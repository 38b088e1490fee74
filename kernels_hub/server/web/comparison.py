"""Two versions of a repository side by side: what changed, and the first files of it line by line."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from kernels_hub.server.listing import Entry
from kernels_hub.server.web.contents import Contents, Revision
from kernels_hub.server.web.diff import (
    DIFF_LIMIT,
    DiffLine,
    Pair,
    TreeChange,
    compare_texts,
    compare_trees,
    side_by_side,
)
from kernels_hub.server.web.source import decode_text

_FILES = 40
_ROWS = 6000
_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class FileDiff:
    """A file of a comparison; `reason` says why there are no lines."""

    path: str
    kind: str
    rows: Sequence[DiffLine] = ()
    pairs: Sequence[Pair] = ()
    reason: str | None = None

    @property
    def added(self) -> int:
        """Lines that are new."""
        return sum(row.kind == "added" for row in self.rows)

    @property
    def removed(self) -> int:
        """Lines that are gone."""
        return sum(row.kind == "removed" for row in self.rows)


def compare_revisions(
    contents: Contents, old: Revision, new: Revision, *, only: str = "", split: bool = False
) -> tuple[list[TreeChange], list[FileDiff]]:
    """Every path that differs (or `only` that one), and the lines of as many as fit on a page."""
    before, after = contents.listing(old.commit).entries, contents.listing(new.commit).entries
    changes = compare_trees(
        {path: entry.oid for path, entry in before.items() if not entry.is_folder},
        {path: entry.oid for path, entry in after.items() if not entry.is_folder},
    )
    if only:
        changes = [change for change in changes if change.path == only]
    files: list[FileDiff] = []
    rows, deadline = 0, time.monotonic() + _SECONDS
    for change in changes:
        if files and (len(files) == _FILES or rows > _ROWS or time.monotonic() > deadline):
            break
        sides = before.get(change.path), after.get(change.path)
        files.append(diff := _file_diff(contents, change, *sides, split=split))
        rows += len(diff.rows)
    return changes, files


def text_of(contents: Contents, entry: Entry, limit: int) -> tuple[str | None, str | None]:
    """A file's text, or why it cannot be shown."""
    if entry.size > limit:
        return None, "This file is too large to show here."
    content = contents.read(entry, limit)
    text = None if content is None else decode_text(content)
    return text, "This file is not text." if text is None else None


def _file_diff(
    contents: Contents, change: TreeChange, old: Entry | None, new: Entry | None, *, split: bool
) -> FileDiff:
    texts = []
    for entry in (old, new):
        text, reason = ("", None) if entry is None else text_of(contents, entry, DIFF_LIMIT)
        if text is None:
            return FileDiff(change.path, change.kind, reason=reason)
        texts.append(text)
    rows = compare_texts(*texts)
    if rows is None:
        return FileDiff(change.path, change.kind, reason="Too much changed to show line by line.")
    if not rows:
        return FileDiff(change.path, change.kind, reason="Only the line break at its end differs.")
    return FileDiff(change.path, change.kind, rows, list(side_by_side(rows)) if split else ())
