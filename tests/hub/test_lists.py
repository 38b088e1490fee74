"""Lists of a Hub: all pages of them, and each is asked for once."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from huggingface_hub.hf_api import RepoFile

from kernels_hub.errors import HubError
from kernels_hub.hub import lists
from kernels_hub.hub.connection import Connection
from kernels_hub.hub.endpoints import Endpoint
from kernels_hub.hub.lists import commits_of, files_of
from tests.hub.place import Place

COMMIT = "a" * 40


@pytest.fixture
def resets() -> Iterator[tuple[str, list[object]]]:
    """An address that resets each connection, and one entry a connection."""
    seen: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    connection, address = listening.accept()
                except OSError:
                    return
                seen.append(address)
                connection.recv(1024)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", seen
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


LISTS: list[Callable[[Connection], object]] = [
    lambda one: one.tree("org/name", "kernel", COMMIT),
    lambda one: one.ask("read", lambda: list(commits_of(one.api, "org/name", "kernel", COMMIT))),
]


@pytest.mark.parametrize("listed", LISTS, ids=["files", "commits"])
def test_an_address_that_does_not_answer_is_asked_once(
    listed: Callable[[Connection], object], resets: tuple[str, list[object]]
):
    address, seen = resets
    with pytest.raises(HubError, match=address):
        listed(Connection(at=Endpoint(address, is_origin=True)))
    assert len(seen) == 1


def test_every_page_is_read(place: Place):
    for number in range(3):
        place.release(f"1.0.{number}", number)
    name, api = place.repo(), place.api
    theirs = list(api.list_repo_tree(name, recursive=True, repo_type="kernel"))
    files = {file.path: file.blob_id for file in files_of(api, name, "kernel", "main")}
    assert files == {file.path: file.blob_id for file in theirs if isinstance(file, RepoFile)} != {}
    below = [file.path for file in files_of(api, name, "kernel", "main", "build")]
    assert below == [path for path in files if path.startswith("build/")]
    commits = [commit.commit_id for commit in api.list_repo_commits(name, repo_type="kernel")]
    assert [commit.commit_id for commit in commits_of(api, name, "kernel", "main")] == commits
    before = len(place.requests("/commits/"))
    rows = lists._rows(api, f"/api/kernels/{name}/commits/main", {"limit": "1"})
    assert [row["id"] for row in rows] == commits
    assert len(place.requests("/commits/")) - before == len(commits) > 2
