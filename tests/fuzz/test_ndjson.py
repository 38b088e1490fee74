"""Bodies of commits, damaged: read whole, or refused with a status that blames the client."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator, Iterator

import pytest

from kernels_hub.server.commit import AddFile, CommitReader, CommitRequest
from kernels_hub.server.limits import Limits
from kernels_hub.server.paths import checked_path
from kernels_hub.server.refusal import Refusal
from tests.fuzz.harness import budget, run
from tests.fuzz.mutations import mutate_bytes, mutate_json

HEADER = {"key": "header", "value": {"summary": "s", "description": "d", "parentCommit": "0" * 40}}
FILE = {"path": "a/b.py", "content": base64.b64encode(b"import torch\n" * 5).decode(), "encoding": "base64"}
LARGE = {"path": "w.bin", "algo": "sha256", "oid": "0" * 64, "size": 5}
CARD = {"path": "README.md", "content": "---\nlicense: mit\n---\n# x", "encoding": "utf-8"}
SEEDS = [
    b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    for rows in (
        [HEADER, {"key": "file", "value": FILE}, {"key": "file", "value": CARD}],
        [HEADER, {"key": "lfsFile", "value": LARGE}, {"key": "deletedFile", "value": {"path": "x"}}],
        [HEADER, {"key": "deletedFolder", "value": {"path": "x/"}}, {"key": "file", "value": FILE}],
    )
]
LIMITS = Limits(max_operations=50, max_inline_bytes=1 << 20)


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Damage a line as JSON, or the whole as bytes; repeat, drop and move lines."""
    if chance.random() < 0.2:
        return mutate_bytes(data, chance)
    lines = data.split(b"\n")
    at = chance.randrange(len(lines))
    match chance.randrange(6):
        case 0:
            lines.insert(at, chance.choice(lines))
        case 1:
            del lines[at]
        case 2:
            chance.shuffle(lines)
        case _ if lines[at]:
            lines[at] = mutate_json(lines[at], chance)
    return b"\n".join(lines)


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 37) if len(data) < 2000 else range(0, len(data), 9999):
        yield data[start : start + (37 if len(data) < 2000 else 9999)]


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def test_any_commit_is_read_or_refused(loop: asyncio.AbstractEventLoop) -> None:
    def parse(data: bytes) -> CommitRequest:
        with CommitReader(LIMITS, lambda _: True) as reader:
            try:
                request = loop.run_until_complete(reader.read(pieces(data)))
            except Refusal as refusal:
                if refusal.status in (400, 413):
                    raise
                raise AssertionError(f"{refusal.status}: {refusal.message}") from refusal
            for operation in request.operations:
                assert checked_path(operation.path) == operation.path
                if isinstance(operation, AddFile):
                    assert len(operation.blob.content) <= LIMITS.max_inline_bytes
            return request

    run("ndjson", SEEDS, mutate, parse, (Refusal,), count=budget())


def test_the_seeds_are_read(loop: asyncio.AbstractEventLoop) -> None:
    for seed in SEEDS:
        with CommitReader(LIMITS, lambda _: True) as reader:
            assert len(loop.run_until_complete(reader.read(pieces(seed))).operations) == 2
