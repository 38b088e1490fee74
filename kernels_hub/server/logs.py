"""The server's log: lines of bounded length and number, on which clients write nothing but text.

Every line passes here, uvicorn's included. Control characters are escaped, so that a request neither forges a
line nor commands a terminal; what looks like a token is masked, wherever it stands; long lines are cut; and past a
number of lines a second the rest is counted, not written.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from urllib.parse import quote, unquote

_LONGEST_LINE = 2000
_MOST_LINES = 60
_TOKEN = re.compile(r"hf_[A-Za-z0-9]{6,}")
_SIGNATURE = re.compile(r"(signature=)[0-9a-f]{8,}")
_MASK = "hf_***"


def masked(text: str) -> str:
    """Text without tokens and signatures."""
    return _SIGNATURE.sub(r"\1***", _TOKEN.sub(_MASK, text))


def masked_path(raw: str) -> str:
    """A percent-encoded path without tokens, in whatever encoding they stand there."""
    decoded = unquote(raw, errors="replace")
    twice = unquote(decoded, errors="replace")
    if _TOKEN.search(decoded) or _TOKEN.search(twice):
        return quote(masked(twice), safe="/*")
    return masked(raw)


def one_line(text: str, most: int = _LONGEST_LINE) -> str:
    """Text with everything escaped that is not printable, and cut where it is long."""
    text = text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text
    )


class LineFormatter(logging.Formatter):
    """Formats a record as one line; a traceback adds lines, each of which begins with spaces."""

    def format(self, record: logging.LogRecord) -> str:
        """The line or lines of a record."""
        record.message = one_line(masked(record.getMessage()))
        if self.usesTime():
            record.asctime = self.formatTime(record, self.datefmt)
        lines = [self.formatMessage(record)]
        if record.exc_info:
            trace = self.formatException(record.exc_info).splitlines()
            shown = trace if len(trace) <= _MOST_LINES else [*trace[:20], "...", *trace[-_MOST_LINES + 21 :]]
            lines += [f"    {one_line(masked(line))}" for line in shown]
        return "\n".join(lines)


class LineRate(logging.Filter):
    """Lets so many records a second pass, on average, and says how many it held back."""

    def __init__(self, per_second: float, burst: float) -> None:
        super().__init__()
        self._rate, self._burst, self._left = per_second, burst, burst
        self._filled = time.monotonic()
        self._held = 0
        self._guard = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written; the first after some were not says so."""
        with self._guard:
            now = time.monotonic()
            self._left = min(self._burst, self._left + (now - self._filled) * self._rate)
            self._filled = now
            if self._left < 1:
                self._held += 1
                return False
            self._left -= 1
            held, self._held = self._held, 0
        if held:
            record.msg, record.args = (
                f"{record.getMessage()} ({held} lines before this one were left out)",
                (),
            )
        return True


def set_up_logs(*, access: bool) -> None:
    """Send every log of a worker process to stderr. access: one line a request, too."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    handler.addFilter(LineRate(10, 100))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    if access:
        lines = logging.StreamHandler()
        lines.setFormatter(LineFormatter("%(asctime)s access %(message)s"))
        lines.addFilter(LineRate(1000, 5000))
        logger = logging.getLogger("kernels_hub.server.access")
        logger.handlers[:] = [lines]
        logger.setLevel(logging.INFO)
        logger.propagate = False
