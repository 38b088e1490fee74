"""Error responses: what the server answers to a request that it refuses.

A refusal carries the status, a one-line message and, where clients look for one, the error code that
`huggingface_hub` maps to an exception: RepoNotFound, RevisionNotFound, EntryNotFound, GatedRepo.
"""

from __future__ import annotations

from collections.abc import Mapping


class Refusal(Exception):
    """An answer other than the one that was asked for; `app.py` turns it into a response."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        body: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.body = dict(body or {})
        self.headers = dict(headers or {})


def bad_request(message: str) -> Refusal:
    """400: what was sent is wrong; sending it again does not help."""
    return Refusal(400, message)


def unauthorized(message: str = "Invalid credentials in Authorization header") -> Refusal:
    """401 for a token that is not one; clients know the default text."""
    return Refusal(401, message)


def login_required() -> Refusal:
    """401 where somebody must say who they are first."""
    return Refusal(401, "This needs a token; log in with `hf auth login` or set HF_TOKEN")


def forbidden(message: str) -> Refusal:
    """403: known, and not allowed."""
    return Refusal(403, message)


def repository_not_found(*, anonymous: bool) -> Refusal:
    """The same words for a repository that is missing and for one that must not be seen."""
    return Refusal(401 if anonymous else 404, "Repository not found", code="RepoNotFound")


def revision_not_found(revision: str) -> Refusal:
    """404 for a branch, tag or commit that is not there."""
    return Refusal(404, f"Invalid rev id: {revision[:200]}", code="RevisionNotFound")


def entry_not_found(path: str, commit: str | None = None) -> Refusal:
    """404 for a file; clients want to know of which commit even then."""
    headers = {"X-Repo-Commit": commit} if commit else None
    return Refusal(404, f"Entry not found: {path[:200]}", code="EntryNotFound", headers=headers)


def too_large(message: str) -> Refusal:
    """413: a limit of this server; the message names it."""
    return Refusal(413, message)


def header_text(message: str) -> str:
    """A message as a header holds it: one line of printable ASCII."""
    text = "".join(c if c.isprintable() else "?" for c in " ".join(message.split()))
    return text.encode("ascii", "replace").decode()
