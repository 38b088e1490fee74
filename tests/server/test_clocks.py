"""Clocks that are an hour apart: of servers of one Hub, of a client and a server, of a mirror, of a store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from huggingface_hub import HfApi

from kernels_hub.server.accounts import Accounts
from kernels_hub.server.database import Database
from kernels_hub.server.hub import Hub
from kernels_hub.server.maintenance import check
from tests.hub_databases import needs_postgresql
from tests.object_store import BUCKET, store
from tests.running_hub import RunningHub, start_hub
from tests.server.lfs_client import PART, Lfs, Trouble
from tests.server.mirror_cases import Mirror, Source, check_whole

HOUR = 3600
LIMITS = {"large_from_bytes": 64 * 1024, "part_bytes": PART}
SHIFTED = """
import os, time
real, ahead = time.time, float(os.environ["CLOCK_AHEAD"])
time.time = lambda: real() + ahead
"""


@pytest.fixture
def ahead(tmp_path: Path) -> Callable[[int], Mapping[str, str]]:
    """The environment of a process whose clock is so many seconds ahead."""
    folder = tmp_path / "clock"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SHIFTED)
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))
    return lambda seconds: {"PYTHONPATH": path, "CLOCK_AHEAD": str(seconds)}


@pytest.fixture
def hubs(
    tmp_path: Path, database: str, objects: str, ahead: Callable[[int], Mapping[str, str]]
) -> Iterator[tuple[RunningHub, RunningHub]]:
    """Two servers of one Hub, the second an hour ahead of the first and of the database."""
    with ExitStack() as stack:
        yield tuple(
            stack.enter_context(
                start_hub(
                    tmp_path / f"at{seconds}",
                    limits=LIMITS,
                    database=database,
                    objects=objects,
                    env=ahead(seconds),
                )
            )
            for seconds in (0, HOUR)
        )


def at(hub: RunningHub, address: str) -> str:
    """An address of one server, asked of another."""
    return str(httpx.URL(address).copy_with(host="127.0.0.1", port=httpx.URL(hub.endpoint).port))


@needs_postgresql
@pytest.mark.git_folder
@pytest.mark.parametrize(
    "order",
    [
        pytest.param((0, 1), id="to the one ahead"),
        pytest.param((1, 0), id="from the one ahead", marks=pytest.mark.exhaustive),
    ],
)
def test_two_servers_of_a_hub(hubs: tuple[RunningHub, RunningHub], order: tuple[int, int]):
    """What one gives out, the other takes: addresses of uploads, sessions, tokens that expire."""
    first, second = (hubs[number] for number in order)
    lfs = Lfs(first, first.token("ada"), "ada/k").create()
    content = os.urandom(70_000)
    actions = lfs.actions(content)
    assert 3500 < actions["upload"]["expires_in"] <= HOUR
    assert httpx.put(actions["upload"]["href"], content=content).status_code == 200
    actions["verify"]["href"] = at(second, actions["verify"]["href"])
    assert lfs.end(actions, content).status_code == 200
    assert lfs.commit("big", content).status_code == 200
    assert lfs.get("big").content == content
    signed = httpx.get(
        f"{first.endpoint}/api/kernels/ada/k/xet-write-token/main", headers=lfs.headers, timeout=60
    )
    if signed.status_code == 200:
        given = signed.json()
        asked = httpx.post(
            at(second, given["casUrl"]) + "/v1/shards",
            content=b"none",
            headers={"Authorization": f"Bearer {given['accessToken']}"},
            timeout=60,
        )
        assert asked.status_code == 400, "a shard that is none, of a session that is known"
    with httpx.Client(base_url=first.endpoint, timeout=60) as browser:
        browser.get("/login")
        page = browser.post(
            "/login",
            data={"token": lfs.token, "next": "/settings/tokens"},
            headers={"Origin": first.endpoint},
        )
        assert page.status_code == 303, page.text
        there = httpx.get(second.endpoint + "/settings/tokens", cookies=dict(browser.cookies), timeout=60)
        assert there.status_code == 200
    with first.administer() as opened:
        soon, _ = opened.accounts.new_token("ada", "read", expires=opened.database.now() + 600)
    for hub in hubs:
        answer = httpx.get(
            hub.endpoint + "/api/whoami-v2", headers={"Authorization": f"Bearer {soon}"}, timeout=60
        )
        assert answer.status_code == 200, "it has ten minutes left, by the clock of the database"
    with first.administer() as opened:
        assert check(opened) == []
    assert "3600 s behind this server's, and counts" in hubs[1].output()
    assert "and counts" not in hubs[0].output()


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's own
@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
def test_a_client_an_hour_from_its_server(
    tmp_path: Path, ahead: Callable[[int], Mapping[str, str]], seconds: int
):
    """huggingface_hub uploads and downloads as ever."""
    with start_hub(tmp_path / "root", limits=LIMITS, env=ahead(seconds)) as running:
        api = HfApi(running.endpoint, token=running.token("ada"))
        api.create_repo("ada/k", repo_type="kernel")
        for name, content in (("small", b"x"), ("big", os.urandom(200_000))):
            (tmp_path / name).write_bytes(content)
            api.upload_file(
                path_or_fileobj=tmp_path / name, path_in_repo=name, repo_id="ada/k", repo_type="kernel"
            )
            found = api.hf_hub_download("ada/k", name, repo_type="kernel", local_dir=tmp_path / "local")
            assert Path(found).read_bytes() == content
        with running.administer() as opened:
            assert check(opened) == []


def test_a_mirror_an_hour_from_its_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It follows by numbers and hashes: entries from the future are as good as any."""
    with start_hub(tmp_path / "origin") as running:
        source = Source(running)
        real = time.time
        for number, seconds in enumerate((0, HOUR, -HOUR)):
            monkeypatch.setattr(time, "time", lambda ahead=seconds: real() + ahead)
            source.release(f"1.{number}.0")
            mirror = Mirror(tmp_path / "mirror", running.endpoint, source.only)
            assert mirror.brought().brought == [source.name()]
        monkeypatch.setattr(time, "time", real)
        with Hub(tmp_path / "mirror") as hub:
            assert check_whole(hub) == [source.name()]


def test_a_store_an_hour_from_its_server(tmp_path: Path):
    """S3 refuses signatures of clocks that are 15 minutes apart: said to who looks, and nothing is half done."""
    with Trouble(store().endpoint) as trouble:
        address = f"s3://{BUCKET}/clock?endpoint={trouble.endpoint}&timeout=2"
        with start_hub(tmp_path / "root", limits=LIMITS, objects=address) as running:
            lfs = Lfs(running, running.token("ada"), "ada/k").create()
            content = os.urandom(70_000)
            trouble.rule = lambda method, path, query: "403 RequestTimeTooSkewed"
            answer = lfs.batch(content)
            assert answer.status_code == 502 and "clock" in answer.json()["error"], answer.text
            assert not lfs.has(content)
            trouble.well()
            assert lfs.upload(content).status_code == 200 and lfs.commit("big", content).status_code == 200


class Ahead:
    """A database whose clock is ahead."""

    def __init__(self, database: Database, seconds: float) -> None:
        self._database, self._seconds = database, seconds

    def __getattr__(self, name: str) -> object:
        return getattr(self._database, name)

    def now(self) -> float:
        return self._database.now() + self._seconds


def test_tokens_expire_by_the_clock_of_the_database(tmp_path: Path):
    with Hub(tmp_path / "root", create=True) as hub:
        hub.accounts.add_user("ada")
        secret, _ = hub.accounts.new_token("ada", "read", expires=hub.database.now() + 600)
        for seconds, valid in ((0, True), (HOUR, False)):
            accounts = Accounts(Ahead(hub.database, seconds), hub.audit)  # type: ignore[arg-type]
            assert (accounts.authenticate(secret) is not None) == valid
