"""Lists of a Hub, page by page, each page asked for once: whoever lists decides whether to ask again, or elsewhere.

The lists of `huggingface_hub` ask an address that nobody answers at for 24 s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from huggingface_hub import GitCommitInfo, HfApi
    from huggingface_hub.hf_api import RepoFile

_Row = dict[str, Any]
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0


def files_of(api: HfApi, repo_id: str, repo_type: str, revision: str, folder: str = "") -> Iterator[RepoFile]:
    """The files below a folder of a revision, each with the names of its content.

    Raises what `HfApi.list_repo_tree` does.
    """
    from huggingface_hub.hf_api import RepoFile

    path = f"/api/{repo_type}s/{repo_id}/tree/{quote(revision, safe='')}"
    path += f"/{quote(folder)}" if folder else ""
    for row in _rows(api, path, {"recursive": "true"}):
        if row["type"] == "file":
            yield RepoFile(**row)  # type: ignore[no-untyped-call]


def commits_of(api: HfApi, repo_id: str, repo_type: str, revision: str) -> Iterator[GitCommitInfo]:
    """The commits of a revision, newest first. Raises what `HfApi.list_repo_commits` does."""
    from huggingface_hub import GitCommitInfo
    from huggingface_hub.utils._datetime import parse_datetime

    for row in _rows(api, f"/api/{repo_type}s/{repo_id}/commits/{quote(revision, safe='')}", {}):
        yield GitCommitInfo(
            commit_id=row["id"],
            authors=[author["user"] for author in row["authors"]],
            created_at=parse_datetime(row["date"]),
            title=row["title"],
            message=row["message"],
            formatted_title=None,
            formatted_message=None,
        )


def _rows(api: HfApi, path: str, params: Mapping[str, str]) -> Iterator[_Row]:
    from huggingface_hub.utils._http import get_session, hf_raise_for_status

    timeout = (CONNECT_SECONDS, ANSWER_SECONDS, ANSWER_SECONDS, CONNECT_SECONDS)
    url: str | None = f"{api.endpoint}{path}"
    query = dict(params) or None
    while url is not None:
        response = get_session().get(url, params=query, headers=api._build_hf_headers(), timeout=timeout)
        hf_raise_for_status(response)
        yield from response.json()
        # The next page's address has its query in it.
        url, query = response.links.get("next", {}).get("url"), None
