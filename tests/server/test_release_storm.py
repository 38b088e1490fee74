"""kill -9 of a server while releases are tagged and yanked: log, refs and database agree, nothing acknowledged is lost."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from kernels_hub.repository.release_entry import START, ReleaseEntry, chain_problem, standings
from kernels_hub.server.maintenance import check
from tests.fuzz.harness import budget
from tests.running_hub import RunningHub, start_hub

WRITERS = 3


@dataclass
class Seen:
    """What the server acknowledged, and what was read of its logs."""

    releases: dict[tuple[str, str], str] = field(default_factory=dict)
    """(repository, tag) -> commit."""
    yanks: list[tuple[str, str]] = field(default_factory=list)
    chains: dict[str, list[ReleaseEntry]] = field(default_factory=dict)


class Writer(threading.Thread):
    """Commits, releases, and yanks every third release, until the server is gone."""

    def __init__(self, hub: RunningHub, number: int, round: int, seen: Seen) -> None:
        super().__init__(daemon=True)
        # Two of the writers share a repository.
        self._repository = "ada/shared" if number else f"ada/own{number}"
        self._prefix = f"v{round}.{number}"
        self._seen = seen
        self._client = httpx.Client(
            base_url=hub.endpoint, headers={"Authorization": f"Bearer {hub.token('ada')}"}, timeout=30
        )
        self.problems: list[str] = []

    def run(self) -> None:
        with contextlib.suppress(httpx.TransportError), self._client:
            for count in range(10**6):
                self._release(f"{self._prefix}.{count}", count)

    def _release(self, tag: str, count: int) -> None:
        api = f"/api/kernels/{self._repository}"
        commit = self._commit(api, f"f{count % 7}", f"{tag} content")
        if commit is None:
            return
        body = {"tag": tag, "message": tag if count % 2 else ""}
        if self._ok(self._client.post(f"{api}/tag/{commit}", json=body)):
            self._seen.releases[self._repository, tag] = commit
            if count % 3 == 0 and self._commit(api, "yanked.json", json.dumps({tag[1:]: "x"})):
                self._seen.yanks.append((self._repository, tag))

    def _commit(self, api: str, path: str, text: str) -> str | None:
        value = {"path": path, "content": base64.b64encode(text.encode()).decode(), "encoding": "base64"}
        lines = [{"key": "header", "value": {"summary": "m"}}, {"key": "file", "value": value}]
        body = "\n".join(map(json.dumps, lines)).encode()
        answer = self._client.post(f"{api}/commit/main", content=body)
        return str(answer.json()["commitOid"]) if self._ok(answer) else None

    def _ok(self, answer: httpx.Response) -> bool:
        if answer.status_code != 200:
            self.problems.append(f"{answer.request.url.path}: {answer.status_code} {answer.text[:200]}")
        return answer.status_code == 200


def whole_log(client: httpx.Client, repository: str) -> list[ReleaseEntry]:
    entries: list[ReleaseEntry] = []
    while True:
        page = client.get(
            f"/api/kernels/{repository}/release-log", params={"after": len(entries), "limit": 50}
        ).json()
        entries += [ReleaseEntry(**entry) for entry in page["entries"]]
        if len(entries) >= page["length"]:
            assert page["head"] == (entries[-1].hash if entries else START)
            return entries


def compare(hub: RunningHub, seen: Seen) -> list[str]:
    """What a restarted server lost, or tells in two ways."""
    problems: list[str] = []
    repositories = sorted({repository for repository, _ in seen.releases})
    with httpx.Client(base_url=hub.endpoint) as client:
        for repository in repositories:
            tags = {
                row["name"]: row["targetCommit"]
                for row in client.get(f"/api/kernels/{repository}/refs").json()["tags"]
            }
            entries = whole_log(client, repository)
            if problem := chain_problem(entries, f"kernel/{repository}"):
                problems.append(problem)
            before = seen.chains.get(repository, [])
            if entries[: len(before)] != before:
                problems.append(f"the log of {repository} was rewritten")
            seen.chains[repository] = entries
            logged = {
                item.entry.tag: item.entry.commit for item in standings(entries).values() if item.is_out
            }
            if logged != tags:
                problems.append(
                    f"{repository}: the log has {logged.items() ^ tags.items()} otherwise than the refs"
                )
            problems += [
                f"{repository} {tag} at {commit} is lost"
                for (name, tag), commit in seen.releases.items()
                if name == repository and tags.get(tag) != commit
            ]
            yanked = {(repository, entry.tag) for entry in entries if entry.kind == "yank"}
            problems += [
                f"{yank} is lost" for yank in seen.yanks if yank[0] == repository and yank not in yanked
            ]
    with hub.administer() as opened:
        problems += check(opened)
        pending = opened.database.rows("SELECT repository FROM pending_refs")
        problems += [f"{row['repository']} was not completed" for row in pending]
    return problems


_LEAST = 3
"""Releases of a round, so that one of two repositories has more than one."""


def storm(root: Path, rounds: int, *, workers: int, seed: int) -> tuple[Seen, list[str]]:
    chance, seen, problems = random.Random(seed), Seen(), []
    for number in range(rounds):
        hub = start_hub(root, workers=workers)
        if number == 0:
            headers = {"Authorization": f"Bearer {hub.token('ada')}"}
            for name in ("shared", "own0"):
                body = {"name": name, "type": "kernel"}
                httpx.post(f"{hub.endpoint}/api/repos/create", json=body, headers=headers).raise_for_status()
        writers = [Writer(hub, n, number, seen) for n in range(WRITERS)]
        for writer in writers:
            writer.start()
        before, end = len(seen.releases), time.monotonic() + 60
        time.sleep(chance.uniform(0.4, 1.2))
        while len(seen.releases) < before + _LEAST and time.monotonic() < end:  # on a machine that is busy
            time.sleep(0.02)
        hub.kill()
        for writer in writers:
            writer.join()
            problems += [f"round {number}: {problem}" for problem in writer.problems]
        with start_hub(root, workers=workers) as again:
            problems += [f"round {number}: {problem}" for problem in compare(again, seen)]
    return seen, problems


@pytest.mark.parametrize("workers", [2])
def test_no_acknowledged_release_is_lost(tmp_path: Path, workers: int):
    rounds = budget(2, 20)
    seen, problems = storm(tmp_path / "hub", rounds, workers=workers, seed=workers)
    assert problems == []
    assert len(seen.releases) >= rounds and seen.yanks
    print(f"{rounds} rounds, {len(seen.releases)} releases and {len(seen.yanks)} yanks acknowledged, 0 lost")


def test_losses_are_found(tmp_path: Path):
    seen, problems = storm(tmp_path / "hub", 1, workers=1, seed=3)
    assert problems == []
    (repository, tag), _ = max(seen.releases.items(), key=lambda item: len(seen.chains[item[0][0]]))
    seen.releases[repository, tag] = "0" * 40
    seen.yanks.append((repository, "v99.0.0"))
    seen.chains[repository] = seen.chains[repository][::-1]
    with start_hub(tmp_path / "hub") as hub:
        found = compare(hub, seen)
    assert sum("is lost" in problem for problem in found) == 2
    assert sum("was rewritten" in problem for problem in found) == 1
