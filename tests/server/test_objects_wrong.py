"""A store that answers wrongly: an error with the status 200, no body, another length, other bytes, another ETag.

What is acknowledged is there, and whole, once the store is well; what is not leaves nothing that is seen.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from kernels_hub.server.hub import Hub
from kernels_hub.server.maintenance import check
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.repositories import Repository
from tests.hub_databases import needs_postgresql
from tests.object_store import BUCKET, store
from tests.running_hub import RunningHub, start_hub
from tests.server.lfs_client import PART, Lfs, Trouble
from tests.server.release_cases import commit, new

LIMITS = {"large_from_bytes": 64 * 1024, "part_bytes": PART}
WRONG = ("200 InternalError", "nothing", "unsaid", "longer", "short", "other", "etag", "unkept", "lost")


@pytest.fixture(scope="module")
def trouble() -> Iterator[Trouble]:
    with Trouble(store().endpoint) as trouble:
        yield trouble


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, trouble: Trouble) -> Iterator[RunningHub]:
    address = f"s3://{BUCKET}/wrong?endpoint={trouble.endpoint}&timeout=10"
    root = tmp_path_factory.mktemp("wrong") / "root"
    with start_hub(root, limits=LIMITS, objects=address) as running:
        yield running


STEPS = {
    "listing the parts": lambda method, path, query: method == "GET" and "uploadId" in query,
    "joining them": lambda method, path, query: method == "POST",
    "reading them back": lambda method, path, query: (
        method == "GET" and "/incoming/" in path and "uploadId" not in query
    ),
    "copying them": lambda method, path, query: method == "PUT",
    "asking for it": lambda method, path, query: method == "HEAD",
    "removing them": lambda method, path, query: method == "DELETE",
}


def cases() -> Iterator[object]:
    """Each answer for each step; the quick ones are those that seem to say that all is well."""
    for what in WRONG:
        for step in STEPS:
            quick = (step, what) in {("copying them", "nothing"), ("joining them", "200 InternalError")}
            yield pytest.param(step, what, marks=() if quick else pytest.mark.exhaustive, id=f"{step}-{what}")


@pytest.mark.parametrize(("step", "what"), list(cases()))
def test_an_upload_that_a_store_answers_wrongly(
    hub: RunningHub, trouble: Trouble, request: pytest.FixtureRequest, step: str, what: str
):
    name = "".join(c if c.isalnum() else "-" for c in f"{step}-{what}")
    lfs = Lfs(hub, hub.token("ada"), f"ada/{name}").create()
    content = os.urandom(70_000)
    actions = lfs.actions(content)
    assert httpx.put(actions["upload"]["href"], content=content).status_code == 200
    met = []

    def rule(method: str, path: str, query: str) -> str | None:
        if not STEPS[step](method, path, query):
            return None
        met.append(step)
        return what

    trouble.rule = rule
    answer = lfs.end(actions, content)
    trouble.well()
    assert met, "the step is one of an upload"
    if answer.status_code == 200:
        assert lfs.has(content)
    else:
        assert answer.status_code in (400, 409, 502, 503), answer.text
        assert not lfs.has(content)
        if lfs.end(actions, content).status_code != 200:  # then its parts are gone: it is sent once more
            assert lfs.upload(content).status_code == 200
    assert lfs.commit("big", content).status_code == 200
    assert lfs.get("big").content == content
    with hub.administer() as opened:
        assert check(opened) == []


@needs_postgresql
@pytest.mark.parametrize(
    "what",
    [
        what if what in ("nothing", "unkept") else pytest.param(what, marks=pytest.mark.exhaustive)
        for what in WRONG
    ],
)
def test_git_data_that_a_store_answers_wrongly(tmp_path: Path, database: str, trouble: Trouble, what: str):
    place = tmp_path.name.replace("_", "-")
    address = f"s3://{BUCKET}/{place}?endpoint={trouble.endpoint}&timeout=10"
    with ExitStack() as stack:

        def opened(name: str) -> Hub:
            return stack.enter_context(Hub(tmp_path / name, create=True, database=database, objects=address))

        one = opened("one")
        one.accounts.add_user("ada")
        repo = new(one)
        commit(one, repo, "before", "1")
        trouble.rule = lambda method, path, query: what if method == "PUT" and "/git/" in path else None
        status = 200
        try:
            commit(one, repo, "during", "2")
        except Refusal as refusal:
            status = refusal.status
        assert status in (200, 502, 503)
        trouble.well()
        two = opened("two")  # which has no copy of anything
        commit(two, repo, "after", "3")
        trouble.rule = lambda method, path, query: what if method == "GET" and "/git/" in path else None
        three = opened("three")
        try:
            found = files(three, repo)
        except (Refusal, OSError, KeyError):
            found = None
        trouble.well()
        expected = {"before": b"1", "after": b"3"} | ({"during": b"2"} if status == 200 else {})
        for names in filter(None, (found, files(three, repo), files(one, repo), files(opened("four"), repo))):
            assert {path: data for path, data in names.items() if path != ".gitattributes"} == expected
        assert check(three) == []


def files(hub: Hub, repo: Repository) -> dict[str, bytes]:
    listing = hub.store.listing(repo, hub.store.resolve(repo, "main"))
    return {entry.path: hub.store.blob(repo, entry.oid) for entry in listing.files()}
