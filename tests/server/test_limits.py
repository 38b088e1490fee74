"""Rates, budgets, and the numbers that worker processes get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_hub.server.commit import CommitReader
from kernels_hub.server.limits import Budget, Limits, RateLimit
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
    with budget.share() as take:
        request = asyncio.run(CommitReader(Limits(), take).read(pieces(LINES, size)))
        assert budget.left == (1 << 20) - len(LINES)
    assert [operation.path for operation in request.operations] == [f"f{n}" for n in range(20)]
    assert request.message == "s" and request.parent is None
    assert budget.left == 1 << 20


def test_commits_share_memory():
    budget = Budget(1000)
    for _ in range(2):
        with pytest.raises(Refusal, match="Too many large commits") as refused, budget.share() as take:
            asyncio.run(CommitReader(Limits(), take).read(pieces(LINES, 64)))
        assert refused.value.status == 503 and budget.left == 1000
