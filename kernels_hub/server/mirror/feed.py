"""API for mirrors: which repositories there are, what state each is in, and its git objects by id.

    GET  /api/mirror/repositories           a page of them, each with a fingerprint of refs and release log
    POST /api/mirror/hidden                 which ids exist, of those that a mirror finds no more
    GET  /api/mirror/status                 of a mirror itself: of what, how old, what is not as there
    GET  /api/<type>/<org>/<name>/state     refs, annotated tags included, and the log's head of the same moment
    POST /api/<type>/<org>/<name>/objects   objects by id, as they are hashed, one after the other

All are answers about what the caller may see anyway. Every Hub answers them, mirrors too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from starlette.responses import Response

from kernels_hub.server.audit import utc
from kernels_hub.server.call import HubRequest, Route, json_response
from kernels_hub.server.mirror.documents import MOST_ROWS, IdsBody, ObjectsBody
from kernels_hub.server.mirror.state import hub_id
from kernels_hub.server.packs import COMMIT, KINDS, Packs
from kernels_hub.server.refs import BRANCHES, TAGS, Ref
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.release_log import chain_of
from kernels_hub.server.repositories import Repository
from kernels_hub.server.store import parse_commit

_PAGE = 500
_OBJECT_BYTES = 16 << 20
_TRIES = 20


def repositories(call: HubRequest) -> Response:
    """A page of the repositories that the caller may see."""
    hub, size = call.hub, call.number("limit", _PAGE, MOST_ROWS)
    rows = hub.repositories.after(call.query("after"), size)
    origin = hub.mirror.origin()
    return json_response(
        {
            "format": 1,
            "hub": hub_id(hub.layout),
            "path": [] if origin is None else list(origin.path),
            "repositories": [
                _row(call, row)
                for row in rows
                if hub.access.may_see(call.caller, row) and not hub.mirror.is_arriving(row)
            ],
            "after": rows[-1].id if len(rows) == size else None,
        }
    )


def _row(call: HubRequest, repository: Repository) -> dict[str, object]:
    account = call.hub.accounts.find(repository.namespace)
    assert account is not None, "a repository's namespace is an account"
    try:
        refs = call.hub.store.content(repository).refs.all()
    except Refusal:  # damaged, or deleted just now
        state = None
    else:
        head = call.hub.releases.log.head(chain_of(repository))
        lines = json.dumps([_shown(refs), head], sort_keys=True)
        state = hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()
    return {
        "id": repository.id,
        "type": repository.type,
        "namespace": account.name,
        "name": repository.name,
        "private": repository.private,
        "gated": repository.gated,
        "owner": {"kind": account.kind, "trusted": account.trusted},
        "state": state,
    }


def _shown(refs: Mapping[str, Ref]) -> dict[str, tuple[str, str | None]]:
    """Branches and tags; what a mirror keeps besides is its own."""
    return {name: (ref.oid, ref.peeled) for name, ref in refs.items() if name.startswith((BRANCHES, TAGS))}


def hidden(call: HubRequest) -> Response:
    """Which of some ids are of repositories that exist, but not for the caller: made private, not deleted."""
    wanted = call.parse(IdsBody).ids
    found = [row for row in map(call.hub.repositories.by_id, dict.fromkeys(wanted)) if row is not None]
    return json_response(
        {"hidden": [row.id for row in found if not call.hub.access.may_see(call.caller, row)]}
    )


def state(call: HubRequest) -> Response:
    """The refs of a repository, and the head of its release log at the same moment."""
    repository = call.visible()
    log, chain = call.hub.releases.log, chain_of(repository)
    refs_of = call.hub.store.content(repository).refs
    for _ in range(_TRIES):
        # An entry is written before the refs that it stands for, with a note until they are, too: where the log is
        # the same before and after, and nothing was noted, the refs in between are those of the log.
        call.hub.changes.recover(repository)
        before = log.head(chain)
        if not refs_of.interrupted():
            refs = refs_of.all()
            if log.head(chain) == before:
                length, head = before
                document = {"format": 1, "refs": _shown(refs), "log": {"length": length, "head": head}}
                return json_response(document)
    raise Refusal(503, "The repository is busy; try again", headers={"Retry-After": "1"})


def objects(call: HubRequest) -> Response:
    """Objects by id, each with git's header, in the order asked for, as many as fit; at least one."""
    repository = call.visible()
    call.hub.access.check_download(call.caller, repository)
    asked = call.parse(ObjectsBody)
    packs = call.hub.store.content(repository).packs
    content = bytearray()
    try:
        oids = _history(packs, asked) if asked.history else list(dict.fromkeys(asked.oids))
        for oid in oids:
            kind, data = packs.read_kind(oid)
            if content and len(content) + len(data) > _OBJECT_BYTES:
                break
            content += b"%s %d\0" % (KINDS[kind], len(data))
            content += data
    except KeyError as error:
        raise Refusal(404, f"This repository has no object {str(error)[:80]}", code="EntryNotFound") from None
    return Response(bytes(content), media_type="application/octet-stream")


def _history(packs: Packs, asked: ObjectsBody) -> list[str]:
    """The commits that are named and those before them, as many as are asked for, without what is known."""
    known, found = set(asked.known), dict.fromkeys(asked.oids)
    waiting, most = list(found), len(found) + asked.history
    for oid in waiting:
        if len(found) >= most:
            break
        kind, content = packs.read_kind(oid)
        if kind == COMMIT:
            new = [one for one in parse_commit(oid, content).parents if one not in found and one not in known]
            found.update(dict.fromkeys(new))
            waiting += new
    return list(found)


def status(call: HubRequest) -> Response:
    """What this Hub mirrors, how old that is, and what is not as at the origin; 404 on a Hub of its own."""
    origin = call.hub.mirror.origin()
    if origin is None:
        raise Refusal(404, "This Hub is no mirror")
    rows = []
    for row in call.hub.mirror.rows():
        repository = call.hub.repositories.by_id(row.repository)
        if repository is None or not row.state or not (row.problem or row.gone):
            continue
        if call.hub.access.may_see(call.caller, repository):
            gone = utc(row.gone) if row.gone else None
            rows.append(
                {"repository": chain_of(repository), "problem": row.problem or None, "goneSince": gone}
            )
    age = origin.age()
    return json_response(
        {
            "mirrorOf": origin.address,
            "caughtUp": utc(origin.caught_up) if origin.caught_up else None,
            "ageSeconds": None if age is None else int(age),
            "problem": origin.problem or None,
            "notAsAtTheOrigin": rows,
        }
    )


def health_lines(call: HubRequest) -> list[str]:
    """What /health says more of a mirror; nothing of a Hub of its own."""
    origin = call.hub.mirror.origin()
    if origin is None:
        return []
    age = origin.age()
    told = "never yet" if age is None else f"{int(age)} s ago, {utc(origin.caught_up)}"
    lines = [f"mirror of {origin.address}", f"caught up {told}"]
    apart = sum(1 for row in call.hub.mirror.rows() if row.problem)
    if apart:
        lines.append(f"{apart} repositories are not as at the origin: /api/mirror/status, hub log")
    if origin.problem:
        lines.append(f"problem: {' '.join(origin.problem.split())[:500]}")
    return lines


_REPOSITORY = "/api/{type:models|kernels}/{namespace}/{name}"
ROUTES = [
    Route("GET", "/api/mirror/repositories", repositories),
    Route("POST", "/api/mirror/hidden", hidden, reads=True),
    Route("GET", "/api/mirror/status", status),
    Route("GET", _REPOSITORY + "/state", state),
    Route("POST", _REPOSITORY + "/objects", objects, slow=True, reads=True),
]
