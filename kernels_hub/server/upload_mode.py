"""Decides whether a file is kept in git or beside it, and whether `.gitignore` leaves it out."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dulwich.attrs import compile_gitattributes_patterns, match_path, parse_git_attributes
from dulwich.ignore import IgnoreFilter

from kernels_hub.server.hub import Hub
from kernels_hub.server.limits import Limits
from kernels_hub.server.listing import Listing
from kernels_hub.server.refusal import bad_request, too_large
from kernels_hub.server.repositories import Repository

_MAX_RULES = 256 * 1024
_MOST_RULES = 1000
_STARS_IN_PART, _DOUBLE_STARS = 2, 1
_MOST_SECONDS = 3.0
_RUN = re.compile(r"\*+")


@dataclass(frozen=True)
class UploadRules:
    """The rules of one repository at one commit."""

    patterns: Any
    ignore: IgnoreFilter | None
    large_from: int
    deadline: float

    @classmethod
    def of(
        cls, hub: Hub, repository: Repository, listing: Listing, git_ignore: str | None, limits: Limits
    ) -> UploadRules:
        """git_ignore: what the client sends in place of the repository's own `.gitignore`."""

        def content(path: str) -> bytes:
            entry = listing.entries.get(path)
            if entry is None or entry.is_folder or entry.large or entry.size > _MAX_RULES:
                return b""
            return hub.store.blob(repository, entry.oid)

        attributes = content(".gitattributes")
        ignored = git_ignore.encode() if git_ignore is not None else content(".gitignore")
        lines = ignored.splitlines()
        _check_rules(".gitattributes", attributes.splitlines())
        _check_rules(".gitignore", lines)
        try:
            rows = list(parse_git_attributes(io.BytesIO(attributes)))
            patterns = list(compile_gitattributes_patterns(rows))
            ignore = IgnoreFilter([line for line in lines if line.strip() and not line.startswith(b"#")])
        except ValueError as error:
            raise bad_request(f".gitattributes or .gitignore does not parse: {error}") from None
        deadline = time.monotonic() + _MOST_SECONDS
        return cls(patterns, ignore if lines else None, limits.large_from_bytes, deadline)

    def mode(self, path: str, size: int) -> str:
        """How a file should come: "lfs" or "regular". Empty files are always regular.

        Refuses (413) to go on once the rules have taken seconds.
        """
        if time.monotonic() > self.deadline:
            raise too_large(
                f"The rules of .gitattributes and .gitignore take more than {_MOST_SECONDS:.0f} s for these files; "
                "ask for fewer files at a time, or write fewer rules"
            )
        attributes: Mapping[bytes, object] = match_path(self.patterns, path.encode())
        large = size >= self.large_from or attributes.get(b"filter") == b"lfs"
        return "lfs" if large and size else "regular"

    def ignored(self, path: str) -> bool:
        """Whether the file should be left out."""
        return self.ignore is not None and self.ignore.is_ignored(path) is True


def _check_rules(name: str, lines: Sequence[bytes]) -> None:
    """Refuse rules that are slow to match: each `*` of a part multiplies the time by the length of a name."""
    rules = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith(b"#")]
    if len(rules) > _MOST_RULES:
        raise bad_request(f"{name} has {len(rules)} rules; at most {_MOST_RULES} are followed")
    for rule in rules:
        pattern = (
            rule.split()[0].decode("utf-8", "replace")
            if name == ".gitattributes"
            else rule.decode("utf-8", "replace")
        )
        stars = [_RUN.findall(part) for part in pattern.split("/")]
        double = sum(run != "*" for runs in stars for run in runs)
        if len(pattern) > 1024 or double > _DOUBLE_STARS or any(len(runs) > _STARS_IN_PART for runs in stars):
            raise bad_request(
                f"{name}: the rule {pattern[:100]!r} is slow to match; at most {_STARS_IN_PART} '*' between two '/', "
                f"{_DOUBLE_STARS} '**' and 1,024 characters are followed"
            )
