"""The harness of the fuzzers finds what it is for."""

from __future__ import annotations

import ctypes
import json
import random
import subprocess
import sys
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
        harness.run("json", SEEDS, mutate_json, lambda data: sum(range(10**6)), (ValueError,), count=1)
    harness.run("json", SEEDS, mutate_json, lambda data: time.sleep(0.01), (ValueError,), count=1)


HELD = "held = bytearray(64 << 20)"
FREED = """
blocks = [bytearray(31 << 20)]
blocks.clear()  # from here on the allocator keeps up to 62 MiB of what is freed
blocks += [bytearray(100_000) for _ in range(900)]
"""
GARBAGE = """
import gc
gc.collect()
gc.set_threshold(5, 1, 1)
held = [bytearray(64 << 20)]
held.append(held)
del held
"""
BREAK_MOVED = FREED + "ctypes.CDLL(None).sbrk(4096)"
CODE = """
import ctypes, json
from tests.fuzz import harness
from tests.fuzz.mutations import mutate_json
harness.LARGEST = 20 << 20
{before}
blocks = None
harness.run("json", [b"{{}}"], mutate_json, json.loads, (ValueError,), count=1, least_parsed=0)
print("small is little", flush=True)
harness.run(
    "numbers",
    [b""],
    lambda data, chance: str(chance.randrange(100)).encode(),
    lambda data: bytearray((40 if data == b"70" else 1) << 20),
    (ValueError,),
    count=400,
)
"""


@pytest.mark.parametrize(
    "before",
    [
        pytest.param("", id="nothing"),
        pytest.param(HELD, id="what is held counts for nothing"),
        pytest.param(FREED, id="what was freed is taken anew"),
        pytest.param(GARBAGE, id="what is collected hides nothing"),
        pytest.param(
            BREAK_MOVED,
            id="what the allocator cannot return as well",
            marks=pytest.mark.skipif(
                not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33 or newer"
            ),
        ),
    ],
)
def test_a_variant_that_takes_much_memory_fails(before: str) -> None:
    """In a process of its own: what a worker that ran for long takes has been seen not to count."""
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(before=before)], capture_output=True, text=True, check=False
    )
    assert "small is little" in done.stdout, done.stderr
    assert done.returncode == 1 and "MiB for b'70'" in done.stderr, done.stderr


def test_what_another_process_takes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "LARGEST", 20 << 20)
    monkeypatch.setattr(harness, "LONGEST", 0.2)
    code = "import sys\nfor line in sys.stdin:\n    exec(line)\n    print('done', flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None and other.stdout is not None

        def do(line: str) -> None:
            with harness.limited("other", line, other.pid):
                print(line, file=other.stdin, flush=True)
                assert other.stdout is not None and other.stdout.readline() == "done\n"

        do("x = 1")
        with pytest.raises(AssertionError, match="MiB for"):
            do("x = bytearray(40 << 20); del x")
        with pytest.raises(AssertionError, match="s for"):
            do("sum(range(3 * 10**7))")
        other.stdin.close()


def test_variants_repeat() -> None:
    first, second = (
        [mutate_bytes(SEEDS[0], chance) for _ in range(50)] for chance in (random.Random(1), random.Random(1))
    )
    assert first == second
    assert len(set(first)) > 30
