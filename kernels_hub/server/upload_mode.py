"""Whether a file is kept in git or beside it, and whether `.gitignore` leaves it out."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dulwich.attrs import compile_gitattributes_patterns, match_path, parse_git_attributes
from dulwich.ignore import IgnoreFilter

from kernels_hub.server.hub import Hub
from kernels_hub.server.limits import Limits
from kernels_hub.server.listing import Listing
from kernels_hub.server.refusal import bad_request
from kernels_hub.server.repositories import Repository

_MAX_RULES = 256 * 1024


@dataclass(frozen=True)
class UploadRules:
    """The rules of one repository at one commit."""

    patterns: Any
    ignore: IgnoreFilter | None
    large_from: int

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

        try:
            rows = list(parse_git_attributes(io.BytesIO(content(".gitattributes"))))
            patterns = list(compile_gitattributes_patterns(rows))
            lines = (git_ignore.encode() if git_ignore is not None else content(".gitignore")).splitlines()
            ignore = IgnoreFilter([line for line in lines if line.strip() and not line.startswith(b"#")])
        except ValueError as error:
            raise bad_request(f".gitattributes or .gitignore does not parse: {error}") from None
        return cls(patterns, ignore if lines else None, limits.large_from_bytes)

    def mode(self, path: str, size: int) -> str:
        """How a file should come: "lfs" or "regular". Empty files are always regular."""
        attributes: Mapping[bytes, object] = match_path(self.patterns, path.encode())
        large = size >= self.large_from or attributes.get(b"filter") == b"lfs"
        return "lfs" if large and size else "regular"

    def ignored(self, path: str) -> bool:
        """Whether the file should be left out."""
        return self.ignore is not None and self.ignore.is_ignored(path) is True
