"""Rates, budgets, and the numbers that worker processes get."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import os
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_hub.cli.serve import serve
from kernels_hub.server.commit import AddFile, CommitReader
from kernels_hub.server.limits import Budget, Limits, RateLimit
from kernels_hub.server.protocol import Guard
from kernels_hub.server.refusal import Refusal


def test_limits_travel():
    limits = Limits(max_operations=7, max_file_bytes=5)
    assert Limits.from_json(limits.to_json()) == limits


@given(st.lists(st.floats(0, 30), max_size=200), st.integers(1, 50))
def test_a_rate_is_never_exceeded(pauses: list[float], per_minute: int):
    limit, now, passed = RateLimit(per_minute), 1000.0, []
    for pause in pauses:
        now += pause
        wait = limit.take("somebody", now)
        if wait == 0:
            passed.append(now)
        else:
            assert limit.take("somebody", now + wait + 1e-6) == 0
            passed.append(now + wait + 1e-6)
            now += wait + 1e-6
    for index, start in enumerate(passed):
        within = [moment for moment in passed[index:] if moment <= start + 60]
        assert len(within) <= 2 * per_minute + 1, "one bucket full, and one minute's refill"


def test_callers_have_their_own_rate():
    limit = RateLimit(2)
    assert [limit.take("a", 0.0) for _ in range(3)] == [0, 0, 30]
    assert limit.take("b", 0.0) == 0
    assert RateLimit(0).take("a") == 0
    for number in range(50_000):
        limit.take(str(number), 100.0)
    assert len(limit._buckets) <= 20_000, "those who have not called for long are forgotten"
    assert limit.take("a", 1000.0) == 0


LINES = b'{"key": "header", "value": {"summary": "s"}}\n' + b"".join(
    b'{"key": "file", "value": {"path": "f%d", "content": "eA==", "encoding": "base64"}}\n' % n
    for n in range(20)
)


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("size", [1, 2, 7, 64, 100_000])
def test_a_commit_arrives_in_pieces(size: int):
    budget = Budget(1 << 20)
    with budget.share() as take, CommitReader(Limits(), take) as reader:
        request = asyncio.run(reader.read(pieces(LINES, size)))
        assert budget.left == (1 << 20) - len(LINES)
    assert [operation.path for operation in request.operations] == [f"f{n}" for n in range(20)]
    assert request.message == "s" and request.parent is None
    assert budget.left == 1 << 20


def test_proxies_are_named_by_address_or_network():
    for proxies, inside, outside in (
        ("127.0.0.1", "127.0.0.1", "127.0.0.2"), ("10.0.0.0/8, ::1", "10.9.8.7", "11.0.0.1"), ("*", "1.2.3.4", None),
        ("", None, "127.0.0.1"), ("fe80::/10", "fe80::1", "::1"), ("nonsense", None, "127.0.0.1"),
    ):  # fmt: skip
        guard = Guard(Limits(), proxies, 1024)
        assert inside is None or guard._is_proxy(inside)
        assert outside is None or not guard._is_proxy(outside)


def test_commits_share_a_disk():
    budget = Budget(1000)
    for _ in range(2):
        with (
            pytest.raises(Refusal, match="Too many large commits") as refused,
            budget.share() as take,
            CommitReader(Limits(), take) as reader,
        ):
            asyncio.run(reader.read(pieces(LINES, 64)))
        assert refused.value.status == 503 and budget.left == 1000


def encoded(size: int, **changed: str) -> bytes:
    """A line with a file of `size` bytes."""
    content = base64.b64encode(b"x" * size).decode()
    value = {"path": "f", "content": content, "encoding": "base64", **changed}
    return json.dumps({"key": "file", "value": value}).encode() + b"\n"


def read(body: bytes, limits: Limits | None = None) -> list[bytes]:
    """The contents of a commit's files."""
    with CommitReader(limits or Limits(), lambda _: True) as reader:
        request = asyncio.run(reader.read(pieces(body, 65_536)))
        return [operation.blob.content for operation in request.operations if isinstance(operation, AddFile)]


HEAD = b'{"key": "header", "value": {"summary": "s"}}\n'
PIECE = 3 << 18  # bytes that a piece of base64 of a MiB decodes to


@pytest.mark.parametrize("size", [0, 1, 2, 3, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 2])
def test_files_are_decoded_in_pieces(size: int):
    first, second = os.urandom(size), b"after it"
    lines = [
        encoded(0, path=f"f{n}", content=base64.b64encode(data).decode())
        for n, data in enumerate((first, second))
    ]
    assert read(HEAD + b"".join(lines)) == [first, second]
    escaped = lines[0].replace(b"/", b"\\/")
    assert read(HEAD + escaped) == [first], "JSON may escape a slash"
    text = json.dumps(
        {"key": "file", "value": {"path": "f", "content": "\u5317" * size, "encoding": "utf-8"}}
    ).encode()
    if size < 1000:
        assert read(HEAD + text) == ["\u5317".encode() * size]


@pytest.mark.parametrize("damage", ["=", "====", "%", "\\n", " ", "\u00e9"])
@pytest.mark.parametrize("at", [0, 4, (1 << 20) - 4, (1 << 20) - 2, 1 << 20, -1])
def test_base64_that_is_wrong_anywhere_is_refused(damage: str, at: int):
    good = base64.b64encode(b"y" * (2 * PIECE)).decode()
    wrong = good + damage if at < 0 else good[:at] + damage + good[at + len(damage) :]
    with pytest.raises(Refusal) as refused:
        read(HEAD + encoded(0, content=wrong))
    assert refused.value.status == 400


def test_a_file_that_is_too_large_is_refused():
    limits = Limits(max_inline_bytes=1000)
    assert read(HEAD + encoded(1000), limits) == [b"x" * 1000]
    for size in (1001, 1_000_000):
        with pytest.raises(Refusal) as refused:
            read(HEAD + encoded(size), limits)
        assert refused.value.status == 413


def test_a_commit_takes_little_memory():
    body = [HEAD, *(encoded(700_000, path=f"f{n}") for n in range(60))]

    async def lines() -> AsyncIterator[bytes]:
        for line in body:
            yield line

    with CommitReader(Limits(), lambda _: True) as reader:
        tracemalloc.start()
        try:
            request = asyncio.run(reader.read(lines()))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert len(request.operations) == 60 and peak < 12 << 20, f"{peak >> 20} MiB for a body of 56"
        assert [operation.blob.size for operation in request.operations] == [700_000] * 60  # type: ignore[union-attr]


def test_every_limit_but_quotas_is_on_by_default():
    command = inspect.signature(serve).parameters
    off = {name for name, value in asdict(Limits()).items() if not value}
    assert off == {"max_repository_bytes", "max_account_repositories"}
    assert not off & {name for name, option in command.items() if option.default}
    assert all(command[name].default == value for name, value in asdict(Limits()).items() if name in command)
