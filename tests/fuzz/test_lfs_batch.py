"""Bodies of LFS batches, checks and completions, damaged, through the whole application."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.harness import budget, run
from tests.fuzz.in_process import InProcess, RefusedRequest
from tests.fuzz.mutations import mutate_json

BATCH = {
    "operation": "upload",
    "transfers": ["basic", "multipart"],
    "hash_algo": "sha256",
    "ref": {"name": "main"},
}
SEEDS = [
    json.dumps(
        {**BATCH, "objects": [{"oid": "ab" * 32, "size": 5}, {"oid": "cd" * 32, "size": 200_000}]}
    ).encode(),
    json.dumps({**BATCH, "objects": []}).encode(),
]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    with InProcess(tmp_path_factory.mktemp("lfs") / "root") as app:
        yield app


def files(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if not path.name.startswith("hub.sqlite")}


def test_any_batch_is_answered_or_refused(app: InProcess) -> None:
    before = files(app.hub.layout.root)

    def parse(data: bytes) -> object:
        answer = json.loads(app.ask("POST", "/ada/r.git/info/lfs/objects/batch", data)[1])
        return [item["actions"] for item in answer["objects"]]

    run("lfs_batch", SEEDS, mutate_json, parse, (RefusedRequest,), count=budget())
    assert files(app.hub.layout.root) == before, "asking where to upload stores nothing"


def test_any_check_and_completion_is_answered_or_refused(app: InProcess) -> None:
    answer = json.loads(app.ask("POST", "/ada/r.git/info/lfs/objects/batch", SEEDS[0])[1])
    href = answer["objects"][1]["actions"]["upload"]["href"].removeprefix("http://hub")
    body = {"oid": "cd" * 32, "parts": [{"partNumber": n, "etag": "0" * 64} for n in (1, 2, 3, 4)]}

    def complete(data: bytes) -> object:
        try:
            return app.ask("POST", href, data, token=False)
        except RefusedRequest as refused:
            if "was not uploaded" in str(refused):
                return None  # well-formed, and of parts that are not there
            raise

    run(
        "lfs_batch",
        [json.dumps(body).encode()],
        mutate_json,
        complete,
        (RefusedRequest,),
        count=budget(150, 5000),
    )

    def verify(data: bytes) -> object:
        try:
            return app.ask("POST", "/ada/r.git/info/lfs/verify", data)
        except RefusedRequest as refused:
            if "no large file" in str(refused):
                return None
            raise

    seed = json.dumps({"oid": "ab" * 32, "size": 5}).encode()
    run("lfs_batch", [seed], mutate_json, verify, (RefusedRequest,), count=budget(150, 5000))
