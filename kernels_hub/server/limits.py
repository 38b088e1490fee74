"""Limits: sizes, quotas, rates. Every number of this kind stands here.

Zero means no limit, for the quotas and the rates.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

MIB = 1 << 20
GIB = 1 << 30
_CALLERS = 20_000


@dataclass(frozen=True)
class Limits:
    """What one server allows. Bytes unless the name says otherwise."""

    max_json_bytes: int = 8 * MIB
    """A JSON body, a form."""
    max_inline_bytes: int = 16 * MIB
    """A file inside a commit."""
    max_commit_bytes: int = 256 * MIB
    """The body of a commit."""
    max_commits_bytes: int = 4 * GIB
    """The bodies of all commits that one worker process reads at a time: they are on its disk."""
    max_operations: int = 25_000
    """Operations in a commit."""
    max_folder_deletions: int = 500
    """Operations in a commit that delete a folder: each looks at every file."""
    max_files: int = 100_000
    """Files of a repository, on one branch."""
    max_file_bytes: int = 50 * GIB
    """A large file."""
    large_from_bytes: int = 1 * MIB
    """From this size on, a file is kept outside git."""
    max_single_bytes: int = 5 * GIB
    """A large file that is sent to an object store in one request: stores take no more."""
    part_bytes: int = 64 * MIB
    """A part of a multipart upload; larger files are uploaded in parts."""
    max_repository_bytes: int = 0
    """What a repository may hold."""
    max_account_repositories: int = 0
    """How many repositories an account may own."""
    min_free_bytes: int = 64 * MIB
    """Space on the disk that uploads leave free."""
    max_requests_per_minute: int = 6000
    """Requests with one token, or of one address without; over all workers, and as many at once."""
    max_bad_tokens_per_minute: int = 60
    """Requests of one address with a token that is none."""
    max_connections: int = 4096
    """Open connections of a worker process; fewer where the system allows it fewer descriptors."""
    max_address_connections: int = 256
    """Open connections of one address, at a worker process."""
    header_seconds: float = 10.0
    """How long the headers of a request may take, or a new connection until its first request."""
    idle_seconds: float = 30.0
    """How long a body may stall, or an answer wait for its client."""
    min_body_rate: int = 128
    """Bytes a second that a body must come with, on average over `idle_seconds`."""
    keep_alive_seconds: int = 30
    """How long a connection is kept between two requests."""
    upload_seconds: int = 3600
    """How long the address of an upload is valid."""
    git_cache_bytes: int = 4 * GIB
    """Copies of packs below a root whose git data is in an object store."""
    session_seconds: int = 12 * 3600
    """How long a browser stays signed in."""

    def to_json(self) -> str:
        """As one line, for the environment of worker processes."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Limits:
        """The limits that `to_json` wrote."""
        return cls(**json.loads(text))


class Budget:
    """A number of bytes that several requests share."""

    def __init__(self, total: int) -> None:
        self.left = total

    @contextmanager
    def share(self) -> Iterator[Callable[[int], bool]]:
        """Yields what takes bytes, and tells whether there were enough; all come back at the end."""
        taken = 0

        def take(count: int) -> bool:
            nonlocal taken
            taken += count
            self.left -= count
            return self.left >= 0

        try:
            yield take
        finally:
            self.left += taken


@dataclass
class _Bucket:
    tokens: float
    filled: float


class RateLimit:
    """A token bucket for each caller: `per_minute` on average, as many at once."""

    def __init__(self, per_minute: float) -> None:
        self.per_minute = per_minute
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._guard = threading.Lock()

    def take(self, caller: str, now: float | None = None) -> int:
        """Count a request: 0 when it may pass, otherwise the seconds after which one may."""
        if self.per_minute <= 0:
            return 0
        now = time.monotonic() if now is None else now
        with self._guard:
            bucket = self._buckets.setdefault(caller, _Bucket(self.per_minute, now))
            self._buckets.move_to_end(caller)
            if len(self._buckets) > _CALLERS:
                self._buckets.popitem(last=False)
            rate = self.per_minute / 60
            bucket.tokens = min(self.per_minute, bucket.tokens + (now - bucket.filled) * rate)
            bucket.filled = now
            if bucket.tokens >= 1:
                bucket.tokens -= 1
                return 0
            return max(1, math.ceil((1 - bucket.tokens) / rate))
