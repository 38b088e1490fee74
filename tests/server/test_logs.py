"""The server's log: whatever clients send, it stays lines of bounded length and number, and tells no token."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from kernels_hub.server import logs
from kernels_hub.server.logs import LineFormatter, LineRate, masked_path


def record(message: str, *values: object, error: BaseException | None = None) -> logging.LogRecord:
    told = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("kernels_hub.server", logging.WARNING, __file__, 1, message, values, told)


def line(message: str, *values: object, error: BaseException | None = None) -> str:
    return LineFormatter("%(levelname)s %(message)s").format(record(message, *values, error=error))


@pytest.mark.parametrize(
    "text", ["a\nWARNING forged", "a\r\x1b[2Jb", "a\u2028b", "a\u202eb", "a\x00b", "a\ud800b"]
)
def test_one_record_is_one_printable_line(text: str):
    written = line("path %s", text)
    assert written.isprintable() and written.encode()
    assert written.startswith("WARNING path a")


def test_long_lines_are_cut():
    assert len(line("%s", "x" * 10**6)) < 2100
    assert "(1000000 characters)" in line("%s", "x" * 10**6)


def test_a_traceback_is_bounded_and_escaped():
    def deep(rest: int) -> None:
        if rest:
            try:
                deep(rest - 1)
            except ValueError as error:
                raise ValueError("a\x1b[31m hf_abcdefghij" + "y" * 10**5) from error
        raise ValueError("first")

    with pytest.raises(ValueError) as caught:
        deep(40)
    first, *rest = line("failed", error=caught.value).splitlines()
    assert first == "WARNING failed"
    assert 10 < len(rest) <= 60 and all(one.startswith("    ") and len(one) < 2100 for one in rest)
    assert all(one.isprintable() for one in rest) and not any("hf_abc" in one for one in rest)


@pytest.mark.parametrize(
    "raw", ["/hf_abcdefghij/x", "/%68f_abcdefghij", "/%2568f_abcdefghij", "/?signature=0123456789"]
)
def test_tokens_are_masked_however_they_are_spelt(raw: str):
    assert "abcdefghij" not in masked_path(raw) and "0123456789" not in masked_path(raw)


def test_past_a_rate_lines_are_counted_and_not_written(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    rate = LineRate(10, 100)
    assert [rate.filter(record("x")) for _ in range(1000)] == [True] * 100 + [False] * 900
    now[0] = 1.0
    later = [record("y %d", number) for number in range(50)]
    assert [rate.filter(one) for one in later] == [True] * 10 + [False] * 40
    assert later[0].getMessage() == "y 0 (900 lines before this one were left out)"
    assert later[1].getMessage() == "y 1"
    now[0] = 1000.0
    assert sum(rate.filter(record("z")) for _ in range(1000)) == 100, "a pause saves no more than the burst"


FLOOD = """
import logging
from types import SimpleNamespace
from kernels_hub.server import logs

logs.time = SimpleNamespace(monotonic=lambda: 0.0)
logs.set_up_logs(access=True)
for number in range(20_000):
    logging.getLogger("uvicorn.error").error("cannot accept %s", "x" * 10_000)
    logging.getLogger("kernels_hub.server.access").info("GET /%s", "y" * 10_000)
"""


def test_a_flood_is_bounded_in_every_log_of_a_worker():
    """Of 400 MB within a moment, 2000 characters of each line that is let through."""
    done = subprocess.run([sys.executable, "-c", FLOOD], capture_output=True, check=True)
    written = done.stderr.splitlines()
    assert max(map(len, written)) < 2200
    assert sum(b"uvicorn" in one for one in written) == 100
    assert sum(b"access GET" in one for one in written) == 5000 == len(written) - 100
