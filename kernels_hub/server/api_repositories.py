"""API of repositories as a whole: created, listed, described, moved, deleted; and access to gated ones."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.responses import Response

from kernels_hub.server.bodies import AccessBody, RepositoryBody, SettingsBody
from kernels_hub.server.call import REPOSITORY_TYPES, HubRequest, Route, json_response
from kernels_hub.server.card import card_data
from kernels_hub.server.listing import Entry, Listing
from kernels_hub.server.paths import checked_repository_name
from kernels_hub.server.refs import DEFAULT_BRANCH
from kernels_hub.server.refusal import Refusal, bad_request, forbidden, login_required, repository_not_found
from kernels_hub.server.repositories import TYPES, Repository
from kernels_hub.server.search import Listed
from kernels_hub.server.store import timestamp

_PAGE, _MOST = 100, 1000
_SORTS = {"lastModified": "updated", "last_modified": "updated", "downloads": "downloads"}
"""What clients call the orders of `SORTS`; any other is by creation, newest first."""
_CARD_BYTES = 1 << 20


def _type(document: RepositoryBody) -> str:
    kind = document.type or "model"
    if kind not in TYPES:
        raise bad_request(f"This Hub has repositories of the types {', '.join(TYPES)}, not {kind[:50]!r}")
    return kind


def _namespace(call: HubRequest, organisation: str | None) -> str:
    """Where a repository goes: an account's name as it is written, by default the caller's."""
    wanted = organisation or call.caller.user
    if wanted is None:
        raise login_required()
    account = call.hub.accounts.find(wanted)
    if account is None:
        raise forbidden(f"There is no namespace {wanted[:100]!r} that this token may write to")
    return account.name


def _private(document: RepositoryBody | SettingsBody) -> bool | None:
    """What a request says of visibility, in the newer or the older way."""
    if document.visibility is not None:
        if document.visibility not in ("public", "private"):
            raise bad_request(f"visibility must be public or private, not {document.visibility[:50]!r}")
        return document.visibility == "private"
    return document.private


def create(call: HubRequest) -> Response:
    """A new repository. The 409 for one that is there names it too."""
    document = call.parse(RepositoryBody)
    kind, name = _type(document), checked_repository_name(document.name)
    namespace = _namespace(call, document.organization)
    call.hub.access.check_write(call.caller, namespace, name)
    most = call.hub.limits.max_account_repositories
    known = call.hub.repositories.find(kind, namespace, name)
    if known is None and most and call.hub.repositories.count_in(namespace) >= most:
        raise forbidden(f"{namespace} may own {most} repositories on this server; delete one first")
    try:
        repository = call.hub.changes.create(
            *(kind, namespace, name), private=bool(_private(document)), author=call.caller.user or ""
        )
    except Refusal as refusal:
        if refusal.status == 409 and (found := call.hub.repositories.find(kind, namespace, name)):
            refusal.body.update(url=call.base + found.page, name=found.full_name)
        raise
    return json_response(
        {"url": call.base + repository.page, "name": repository.full_name, "id": repository.id}
    )


def delete(call: HubRequest) -> Response:
    """Delete a repository."""
    document = call.parse(RepositoryBody)
    namespace = document.organization or call.caller.user or ""
    repository = call.hub.access.writable(
        call.caller, _type(document), namespace, document.name or "", admin=True
    )
    with call.acting():
        call.hub.store.delete(repository, call.caller.user or "")
    return json_response({})


def move(call: HubRequest) -> Response:
    """Give a repository another name or owner."""
    document = call.parse(RepositoryBody)
    halves = [(name or "").split("/") for name in (document.from_repo, document.to_repo)]
    if any(len(half) != 2 for half in halves):
        raise bad_request("fromRepo and toRepo must be of the form org/name")
    (old_space, old_name), (new_space, new_name) = halves
    repository = call.hub.access.writable(call.caller, _type(document), old_space, old_name, admin=True)
    namespace = _namespace(call, new_space)
    name = checked_repository_name(new_name)
    call.hub.access.check_write(call.caller, namespace, name, admin=True)
    with call.acting():
        call.hub.changes.rename(repository, namespace, name, call.caller.user or "")
    return json_response({"url": call.base + f"/{namespace}/{name}"})


def settings(call: HubRequest) -> Response:
    """Make a repository private or public, gated or open."""
    repository, document = call.writable(admin=True), call.parse(SettingsBody)
    private, gated = _private(document), document.gated
    if gated is True:
        raise bad_request("gated must be auto, manual or false, not true")
    with call.acting():
        if private is not None:
            call.hub.repositories.set_private(repository, private)
        if gated is not None:
            call.hub.repositories.set_gated(repository, gated or "")
    current = call.hub.repositories.by_id(repository.id) or repository
    return json_response({"private": current.private, "gated": current.gated or False})


def listed(call: HubRequest) -> Response:
    """Repositories of a type that the caller may see, newest first; `author`, `search`, `sort`, `limit`, `cursor`."""
    page = call.hub.search.visible(
        *(call.caller, REPOSITORY_TYPES[call.params["type"]], call.query("author"), call.query("search")),
        call.number("limit", _PAGE, _MOST),
        after=call.query("cursor"),
        sort=_SORTS.get(call.query("sort"), "newest"),
    )
    headers = {}
    if page.following is not None:
        rest = [(key, value) for key, value in parse_qsl(call.request.url.query) if key != "cursor"]
        query = urlencode([*rest, ("cursor", page.following)])
        headers["Link"] = f'<{call.base}{call.request.url.path}?{query}>; rel="next"'
    return json_response([_summary(call, listed) for listed in page.rows], headers=headers)


def _summary(call: HubRequest, listed: Listed) -> dict[str, object]:
    repository, described = listed.repository, listed.described
    common = _common(repository, listed.downloads)
    if described is not None:
        head, modified = described.head, described.modified or timestamp(repository.created)
        return {**common, "sha": head, "lastModified": modified}
    try:
        head = call.hub.store.resolve(repository, DEFAULT_BRANCH)
        modified = call.hub.store.commit_info(repository, head).date
    except Refusal:  # Deleted between the list and here, or without a main branch.
        head, modified = None, timestamp(repository.created)
    return {**common, "sha": head, "lastModified": modified}


def _common(repository: Repository, downloads: int) -> dict[str, object]:
    return {
        "_id": repository.id[:24],
        "id": repository.full_name,
        "modelId": repository.full_name,
        "author": repository.namespace,
        "private": repository.private,
        "gated": repository.gated or False,
        "disabled": False,
        "downloads": downloads,
        "likes": 0,
        "tags": [],
        "createdAt": timestamp(repository.created),
    }


def info(call: HubRequest) -> Response:
    """A repository at a revision: its commit, and every file (with sizes and hashes for `blobs`)."""
    repository, store = call.visible(), call.hub.store
    commit = store.resolve(repository, call.params.get("revision", DEFAULT_BRANCH))
    listing = store.listing(repository, commit)
    blobs = call.flag("blobs")
    siblings = [_sibling(entry) if blobs else {"rfilename": entry.path} for entry in listing.files()]
    document = {
        **_common(repository, call.hub.downloads.of(repository.id).total),
        "sha": commit,
        "lastModified": store.commit_info(repository, commit).date,
        "siblings": siblings,
        "usedStorage": call.hub.large_files.total(repository),
    }
    if card := _card(call, repository, listing):
        document["cardData"] = card
    return json_response(document)


def _card(call: HubRequest, repository: Repository, listing: Listing) -> dict[str, Any]:
    entry = listing.entries.get("README.md")
    if entry is None or entry.is_folder or entry.large or entry.size > _CARD_BYTES:
        return {}
    return card_data(call.hub.store.blob(repository, entry.oid).decode("utf-8", "replace"))


def _sibling(entry: Entry) -> dict[str, object]:
    document: dict[str, object] = {"rfilename": entry.path, "size": entry.size, "blobId": entry.oid}
    if entry.large:
        document["lfs"] = entry.large.to_dict("sha256")
    return document


def auth_check(call: HubRequest) -> Response:
    """200 for those who may download."""
    call.hub.access.check_download(call.caller, call.visible())
    return json_response({})


def ask_access(call: HubRequest) -> Response:
    """Ask for access to a gated repository: granted at once where that is automatic."""
    repository = call.visible()
    if call.caller.user is None:
        raise login_required()
    if not repository.gated:
        raise bad_request(f"{repository.full_name} is open: nobody needs to ask")
    if call.hub.repositories.grant_of(repository, call.caller.user) is None:
        status = "accepted" if repository.gated == "auto" else "pending"
        with call.acting():
            call.hub.repositories.grant(repository, call.caller.user, status)
    return json_response({"status": call.hub.repositories.grant_of(repository, call.caller.user)})


def _gated(call: HubRequest) -> Repository:
    repository = call.writable()
    if not repository.gated:
        raise bad_request(f"{repository.full_name} is not gated")
    return repository


def requests(call: HubRequest) -> Response:
    """The users of a status: accepted, pending or rejected."""
    repository = _gated(call)
    return json_response(
        [
            {
                "user": {"user": user, "fullname": user, "_id": user},
                "status": call.params["status"],
                "timestamp": timestamp(changed),
            }
            for user, changed in call.hub.repositories.grants(repository, call.params["status"])
        ]
    )


def handle_request(call: HubRequest) -> Response:
    """Answer a request for access, or give access without one."""
    repository, document = _gated(call), call.parse(AccessBody)
    status = "accepted" if call.params["action"] == "grant" else document.status
    if status not in ("accepted", "rejected", "pending"):
        raise bad_request("status must be accepted, rejected or pending")
    name = document.user or document.user_id or ""
    account = call.hub.accounts.find(name)
    if account is None or account.kind != "user":
        raise Refusal(404, f"There is no user {name[:100]!r}")
    with call.acting():
        call.hub.repositories.grant(repository, account.name, status)
    return json_response({"user": account.name, "status": status})


def unknown_type(call: HubRequest) -> Response:
    """Data sets, spaces and the rest: there are none here."""
    raise repository_not_found(anonymous=call.caller.token is None)


_REPOSITORY = "/api/{type:models|kernels}/{namespace}/{name}"
ROUTES = [
    Route("POST", "/api/repos/create", create),
    Route("DELETE", "/api/repos/delete", delete),
    Route("POST", "/api/repos/move", move),
    Route("GET", "/api/{type:models|kernels}", listed),
    Route("GET", _REPOSITORY, info),
    Route("GET", _REPOSITORY + "/revision/{revision}", info),
    Route("PUT", _REPOSITORY + "/settings", settings),
    Route("GET", _REPOSITORY + "/auth-check", auth_check),
    Route("POST", _REPOSITORY + "/user-access-request", ask_access),
    Route("POST", _REPOSITORY + "/user-access-request/{action:grant|handle}", handle_request),
    Route("GET", _REPOSITORY + "/user-access-request/{status:accepted|pending|rejected}", requests),
    Route("GET HEAD POST", "/api/{type:datasets|spaces}/{rest:rest}", unknown_type, reads=True),
]
