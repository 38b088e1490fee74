"""API of a repository's content: trees, history, branches, tags, and commits to it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from urllib.parse import parse_qs, quote

from starlette.responses import Response

from kernels_hub.server.bodies import MOST_PATHS, BranchBody, PathsBody, PreuploadBody, TagBody
from kernels_hub.server.call import HubRequest, Route, json_response
from kernels_hub.server.commit import CommitReader
from kernels_hub.server.listing import Entry, Listing
from kernels_hub.server.paths import checked_path
from kernels_hub.server.refs import BRANCHES, TAGS
from kernels_hub.server.refusal import bad_request, entry_not_found
from kernels_hub.server.release_log import chain_of
from kernels_hub.server.upload_mode import UploadRules

_TREE_PAGE, _COMMITS_PAGE, _LOG_PAGE = 1000, 50, 1000


def refs(call: HubRequest) -> Response:
    """Branches and tags with the commits that they point to."""
    repository = call.visible()
    found: dict[str, list[dict[str, str]]] = {BRANCHES: [], TAGS: []}
    for name, ref in call.hub.store.content(repository).refs.all().items():
        for prefix, rows in found.items():
            if name.startswith(prefix):
                rows.append({"name": name.removeprefix(prefix), "ref": name, "targetCommit": ref.commit})
    document = {"branches": found[BRANCHES], "tags": found[TAGS], "converts": []}
    return json_response({**document, "pullRequests": []} if call.flag("include_prs") else document)


def create_branch(call: HubRequest) -> Response:
    """A branch, at `startingPoint` or at main."""
    repository, document = call.writable(), call.parse(BranchBody)
    call.hub.changes.create_branch(
        repository,
        call.params["branch"],
        document.starting_point,
        overwrite=document.overwrite is True,
        author=call.caller.user or "",
    )
    return json_response({})


def delete_branch(call: HubRequest) -> Response:
    """Delete a branch."""
    call.hub.changes.delete_branch(call.writable(), call.params["branch"], call.caller.user or "")
    return json_response({})


def create_tag(call: HubRequest) -> Response:
    """A tag at a revision."""
    repository, document = call.writable(), call.parse(TagBody)
    call.hub.changes.create_tag(
        *(repository, document.tag, call.params["revision"], document.message, call.caller.user or "")
    )
    return json_response({})


def delete_tag(call: HubRequest) -> Response:
    """Delete a tag; 403 for a release."""
    call.hub.changes.delete_tag(call.writable(), call.params["revision"], call.caller.user or "")
    return json_response({})


def _row(entry: Entry) -> dict[str, object]:
    row: dict[str, object] = {
        "type": "directory" if entry.is_folder else "file",
        "oid": entry.oid,
        "size": entry.size,
        "path": entry.path,
    }
    if entry.large:
        row["lfs"] = entry.large.to_dict("oid")
    return row


def tree(call: HubRequest) -> Response:
    """The entries of a folder, or of everything below it; a page at a time, all of one commit."""
    repository, store = call.visible(), call.hub.store
    start = 0
    if cursor := call.query("cursor"):
        commit, _, number = cursor.partition(":")
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            raise bad_request("This cursor is not one of this server's")
        start, commit = int(number), store.resolve(repository, commit)
    else:
        commit = store.resolve(repository, call.params["revision"])
    entries = _below(store.listing(repository, commit), call.params.get("path", ""), commit, call)
    size = call.number("limit", _TREE_PAGE, _TREE_PAGE)
    headers = {"X-Repo-Commit": commit}
    if start + size < len(entries):
        query = f"cursor={commit}%3A{start + size}&limit={size}"
        query += "".join(f"&{name}=True" for name in ("recursive", "expand") if call.flag(name))
        headers["Link"] = f'<{call.base}{_raw_path(call)}?{query}>; rel="next"'
    return json_response([_row(entry) for entry in entries[start : start + size]], headers=headers)


def _raw_path(call: HubRequest) -> str:
    raw: bytes = call.request.scope["raw_path"]
    return raw.decode("ascii", "replace")


def _below(listing: Listing, path: str, commit: str, call: HubRequest) -> Sequence[Entry]:
    path = path.rstrip("/")
    if path and ((entry := listing.entries.get(path)) is None or not entry.is_folder):
        raise entry_not_found(path, commit)
    prefix = f"{path}/" if path else ""
    deep = call.flag("recursive")
    return [
        entry
        for entry in listing.entries.values()
        if entry.path.startswith(prefix) and (deep or "/" not in entry.path[len(prefix) :])
    ]


def paths_info(call: HubRequest) -> Response:
    """The entries of the paths that are asked for; those that are not there are left out."""
    repository, store = call.visible(), call.hub.store
    commit = store.resolve(repository, call.params["revision"])
    if "json" in call.request.headers.get("content-type", ""):
        paths = call.parse(PathsBody).paths
    else:
        try:
            form = parse_qs(call.body.decode(), errors="strict", max_num_fields=MOST_PATHS + 10)
        except ValueError:
            raise bad_request(f"The body is no form with at most {MOST_PATHS} paths") from None
        paths = form.get("paths", [])
        if len(paths) > MOST_PATHS:
            raise bad_request(f"The form has {len(paths)} paths; at most {MOST_PATHS} are answered")
    entries = store.listing(repository, commit).entries
    found = [entries[path.rstrip("/")] for path in paths if path.rstrip("/") in entries]
    return json_response([_row(entry) for entry in found], headers={"X-Repo-Commit": commit})


def commits(call: HubRequest) -> Response:
    """The history of a revision, newest first."""
    repository, store = call.visible(), call.hub.store
    start = store.resolve(repository, call.query("cursor") or call.params["revision"])
    size = call.number("limit", _COMMITS_PAGE, 1000)
    found, following = store.history(repository, start, size)
    headers = {}
    if following is not None:
        headers["Link"] = f'<{call.base}{_raw_path(call)}?cursor={following}&limit={size}>; rel="next"'
    rows = []
    for item in found:
        title, _, message = item.message.partition("\n")
        author = {"user": item.author, "avatar": ""}
        rows.append(
            {
                "id": item.oid,
                "title": title,
                "message": message.strip(),
                "authors": [author],
                "date": item.date,
            }
        )
    return json_response(rows, headers=headers)


def preupload(call: HubRequest) -> Response:
    """How each file should come: in the commit, or through LFS; and what is there already."""
    repository, document = call.writable(), call.parse(PreuploadBody)
    if len(document.files) > (most := call.hub.limits.max_operations):
        raise bad_request(f"files must be a list of at most {most} files")
    commit = call.hub.store.resolve(repository, call.params["revision"])
    listing = call.hub.store.listing(repository, commit)
    rules = UploadRules.of(call.hub, repository, listing, document.git_ignore, call.hub.limits)
    rows = []
    for file in document.files:
        path, size = checked_path(file.path), file.size
        try:
            base64.b64decode(file.sample or "", validate=True)
        except (binascii.Error, ValueError):
            raise bad_request(f"{path}: sample must be base64") from None
        row: dict[str, object] = {
            "path": path,
            "uploadMode": rules.mode(path, size),
            "shouldIgnore": rules.ignored(path),
        }
        if (entry := listing.entries.get(path)) is not None and not entry.is_folder:
            row["oid"] = entry.large.sha256 if entry.large else entry.oid
        rows.append(row)
    return json_response({"files": rows, "commitOid": commit})


async def commit(call: HubRequest) -> Response:
    """Commit to a branch: all operations or none."""
    repository = await call.run(call.writable)
    if call.flag("create_pr"):
        raise bad_request("This Hub has no pull requests; commit to a branch")
    await call.run(call.hub.check_space, repository, 0)
    branch = call.params["revision"].removeprefix(BRANCHES)
    folder = (await call.run(call.hub.layout.temporary)).parent
    with call.hub.commits.share() as take, CommitReader(call.hub.limits, take, folder) as reader:
        request = await reader.read(call.request.stream())
        changed = await call.run(call.hub.changes.commit, repository, branch, request, call.caller.user)
    url = f"{call.base}{repository.page}/commit/{quote(changed.oid)}"
    return json_response({"success": True, "commitOid": changed.oid, "commitUrl": url, "hookOutput": ""})


def release_log(call: HubRequest) -> Response:
    """The log of releases and yanks from an entry on, and its head; only our own Hub has one."""
    repository, log = call.visible(), call.hub.releases.log
    # Whoever read the refs before finds every release of theirs here.
    call.hub.changes.recover(repository)
    start = call.query("after") or "0"
    if not (start.isascii() and start.isdigit() and len(start) < 10):
        raise bad_request("after must be a number of entries")
    chain = chain_of(repository)
    length, head = log.head(chain)
    entries = log.entries(chain, int(start), call.number("limit", _LOG_PAGE, _LOG_PAGE))
    return json_response(
        {
            "format": 1,
            "repository": chain,
            "length": length,
            "head": head,
            "entries": [json.loads(entry.canonical()) for entry in entries],
        }
    )


_REPOSITORY = "/api/{type:models|kernels}/{namespace}/{name}"
ROUTES = [
    Route("GET", _REPOSITORY + "/refs", refs),
    Route("GET", _REPOSITORY + "/release-log", release_log),
    Route("POST", _REPOSITORY + "/branch/{branch}", create_branch),
    Route("DELETE", _REPOSITORY + "/branch/{branch}", delete_branch),
    Route("POST", _REPOSITORY + "/tag/{revision}", create_tag),
    Route("DELETE", _REPOSITORY + "/tag/{revision}", delete_tag),
    Route("GET", _REPOSITORY + "/tree/{revision}", tree),
    Route("GET", _REPOSITORY + "/tree/{revision}/", tree),
    Route("GET", _REPOSITORY + "/tree/{revision}/{path:rest}", tree),
    Route("POST", _REPOSITORY + "/paths-info/{revision}", paths_info, reads=True),
    Route("GET", _REPOSITORY + "/commits/{revision}", commits),
    Route("POST", _REPOSITORY + "/preupload/{revision}", preupload),
    Route("POST", _REPOSITORY + "/commit/{revision}", commit),
]
