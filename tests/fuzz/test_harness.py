"""The harness of the fuzzers finds what it is for."""

from __future__ import annotations

import json
import random
import time

import pytest

from tests.fuzz import harness
from tests.fuzz.mutations import mutate_bytes, mutate_json

SEEDS = [json.dumps({"name": "x", "size": 3, "files": [{"path": "a"}]}).encode()]


def test_counts_what_parses_and_what_is_refused() -> None:
    tally = harness.run("json", SEEDS, mutate_json, json.loads, (ValueError,), count=200)
    assert tally.total == 200
    assert tally.parsed and tally.refused


def test_another_error_fails() -> None:
    with pytest.raises(AssertionError, match="KeyError"):
        harness.run(
            "json", SEEDS, mutate_json, lambda d: json.loads(d)["size"], (ValueError, TypeError), count=200
        )


def test_a_parser_that_refuses_everything_fails() -> None:
    def refuse(data: bytes) -> None:
        raise ValueError(data)

    with pytest.raises(AssertionError, match="of 50 variants parse"):
        harness.run("json", SEEDS, mutate_json, refuse, (ValueError,), count=50)


def test_a_slow_variant_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "LONGEST", 0.001)
    with pytest.raises(AssertionError, match=r"0\.0 s for"):
        harness.run("json", SEEDS, mutate_json, lambda data: time.sleep(0.01), (ValueError,), count=1)


def test_variants_repeat() -> None:
    first, second = (
        [mutate_bytes(SEEDS[0], chance) for _ in range(50)] for chance in (random.Random(1), random.Random(1))
    )
    assert first == second
    assert len(set(first)) > 30
