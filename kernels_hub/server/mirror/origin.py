"""Asks the Hub that is mirrored: typed answers, retries with the waits that it asks for, limits on every answer."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import IO, Protocol, TypeVar
from urllib.parse import quote

from kernels_hub.errors import HubError, IntegrityError
from kernels_hub.parsing import parse_json
from kernels_hub.server.limits import RateLimit
from kernels_hub.server.mirror.documents import (
    MOST_OIDS,
    FeedDocument,
    HiddenDocument,
    LogDocument,
    RepositoryDocument,
    StateDocument,
)
from kernels_hub.server.packs import KINDS, GitObject, git_object
from kernels_hub.version import __version__

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
_TRIES = 4
_LONGEST_WAIT = 60.0
_SECONDS = 30.0
"""Without a byte, until an answer counts as cut."""
_ANSWER_SECONDS = 300.0
"""For an answer that is read whole."""
_SLOWEST, _GRACE = 1024, 60.0
"""Bytes a second that a file must come with on average, from so many seconds on."""
_MOST_DOCUMENT = 64 << 20
_MOST_OBJECTS = 128 << 20
REQUESTS_PER_MINUTE = 1200


class OriginUnreachableError(HubError):
    """The origin does not answer, or asks to wait for longer than a round takes: the round is over."""


class OriginRefusedError(HubError):
    """An answer of the origin that is about one repository: 401, 403, 404, or none that a Hub gives."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class _Question:
    """A request. Only files may lead elsewhere (an object store), where the token is not sent along."""

    path: str
    method: str = "GET"
    params: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, object] | None = None
    start: int = 0
    """The first byte that is asked for."""
    is_file: bool = False


class _Response(Protocol):
    """An answer of huggingface_hub's client, as far as it is used."""

    @property
    def status_code(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def iter_bytes(self) -> Iterator[bytes]:
        """The content, decoded, as it comes."""


class Origin:
    """One Hub, asked with one token. `wait` pauses between tries, and ends the process's patience in tests."""

    def __init__(
        self,
        address: str,
        token: str | None = None,
        *,
        requests_per_minute: int = REQUESTS_PER_MINUTE,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self.address = address.rstrip("/")
        self._headers = {"User-Agent": f"kernels_hub-mirror/{__version__}"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._rate = RateLimit(requests_per_minute)
        self._wait = wait

    # -- questions

    def repositories(self) -> Iterator[FeedDocument]:
        """Every repository that the token may see, a page at a time."""
        after: str | None = ""
        while after is not None:
            page = self._document(
                _Question("/api/mirror/repositories", params={"after": after}), FeedDocument
            )
            yield page
            if page.after is not None and page.after <= after:
                raise HubError(f"{self.address} answers its list of repositories in circles")
            after = page.after

    def hidden(self, ids: list[str]) -> set[str]:
        """Which of some repositories exist, but not for this token."""
        question = _Question("/api/mirror/hidden", "POST", body={"ids": ids})
        return set(self._document(question, HiddenDocument).hidden)

    def state(self, row: RepositoryDocument) -> StateDocument:
        """The refs of a repository, and the head of its log."""
        return self._document(_Question(f"{_api(row)}/state"), StateDocument)

    def log(self, row: RepositoryDocument, after: int) -> LogDocument:
        """Entries of a repository's release log, from a number on."""
        question = _Question(f"{_api(row)}/release-log", params={"after": str(after)})
        return self._document(question, LogDocument)

    def objects(
        self, row: RepositoryDocument, oids: list[str], *, history: int = 0, known: list[str] | None = None
    ) -> list[GitObject]:
        """Git objects by id, as many as the origin sends at a time; each has the id that its content gives it."""
        body = {"oids": oids[:MOST_OIDS], "history": history, "known": (known or [])[:MOST_OIDS]}
        data = self._read(_Question(f"{_api(row)}/objects", "POST", body=body), _MOST_OBJECTS)
        return list(_parse_objects(data, f"{self.address}{_api(row)}/objects"))

    def download(self, row: RepositoryDocument, commit: str, path: str, size: int, file: IO[bytes]) -> None:
        """Append what is missing of a file to what is there of it, up to its size."""
        prefix = "" if row.type == "model" else f"/{row.type}s"
        question = _Question(f"{prefix}/{row.full_name}/resolve/{commit}/{quote(path)}", is_file=True)
        where = self.address + question.path

        def ask() -> None:
            start = file.seek(0, 2)
            if start >= size:
                return
            began = time.monotonic()
            with self._answer(replace(question, start=start)) as response:
                if start and response.status_code != 206:
                    start = 0
                    file.truncate(file.seek(0))
                got = start
                # As they come: what a larger piece would wait for is lost with the connection.
                for chunk in response.iter_bytes():
                    got += len(chunk)
                    if got > size:
                        raise IntegrityError(f"{where} sends more than the {size} bytes that it has")
                    file.write(chunk)
                    seconds = time.monotonic() - began
                    if seconds > _GRACE and (got - start) / seconds < _SLOWEST:
                        raise OriginUnreachableError(f"{where} arrives too slowly; it goes on")
            if got < size:
                raise _CutError(f"{where} was cut after {got} of {size} bytes")

        self._retried(ask, question.path)

    # -- answers

    def _document(self, question: _Question, kind: type[_T]) -> _T:
        data = self._read(question, _MOST_DOCUMENT)
        where = self.address + question.path
        return parse_json(data, kind, where=where, error=IntegrityError, most_bytes=_MOST_DOCUMENT)

    def _read(self, question: _Question, most: int) -> bytes:
        where = self.address + question.path

        def ask() -> bytes:
            content = bytearray()
            end = time.monotonic() + _ANSWER_SECONDS
            with self._answer(question) as response:
                for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > most:
                        raise IntegrityError(f"{where} answers with more than {most:,} bytes")
                    if time.monotonic() > end:
                        raise _CutError(f"{where} does not come to an end")
            return bytes(content)

        return self._retried(ask, question.path)

    @contextmanager
    def _answer(self, question: _Question) -> Iterator[_Response]:
        """One answer, to be read; raises for those that are none."""
        from huggingface_hub.utils._http import get_session

        while wait := self._rate.take("origin"):
            self._wait(wait)
        with get_session().stream(
            question.method,
            self.address + question.path,
            params=dict(question.params),
            json=question.body,
            headers={**self._headers, **({"Range": f"bytes={question.start}-"} if question.start else {})},
            timeout=_SECONDS,
            follow_redirects=question.is_file,
        ) as response:
            status = response.status_code
            if status in _RETRIED:
                raise _RetryError(f"{self.address} answers {status}", _retry_after(response))
            if status not in (200, 206):
                said = " ".join(str(response.headers.get("X-Error-Message", "")).split())[:200]
                raise OriginRefusedError(
                    f"{self.address}{question.path} answers {status}{': ' if said else ''}{said}", status
                )
            yield response

    def _retried(self, ask: Callable[[], _T], path: str) -> _T:
        """Ask until there is an answer; OriginUnreachableError where there is none."""
        for tries in range(1, _TRIES + 1):
            wait = min(_LONGEST_WAIT, 2.0 ** (tries - 1)) * random.uniform(0.5, 1)  # noqa: S311 (jitter)
            try:
                return ask()
            except (HubError, IntegrityError):
                raise
            except _RetryError as error:
                problem, wait = str(error), wait if error.after is None else error.after
            except _CutError as error:
                problem = str(error)
            except Exception as error:
                if not _is_of_the_network(error):
                    raise
                first = (str(error) or type(error).__name__).splitlines()[0]
                problem = f"{self.address} cannot be reached, or breaks off: {first[:200]}"
            if tries < _TRIES and wait <= _LONGEST_WAIT:
                log.info("%s (%s); asking again in %.1f s", problem, path, wait)
                self._wait(wait)
                continue
            break
        raise OriginUnreachableError(problem)


class _RetryError(Exception):
    """An answer that another try may better; `after` is what the origin asks to wait."""

    def __init__(self, message: str, after: float | None) -> None:
        super().__init__(message)
        self.after = after


class _CutError(Exception):
    """An answer that ended early."""


def _api(row: RepositoryDocument) -> str:
    return f"/api/{row.type}s/{row.full_name}"


def _retry_after(response: _Response) -> float | None:
    asked = str(response.headers.get("Retry-After", ""))
    return float(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else None


def _is_of_the_network(error: Exception) -> bool:
    from huggingface_hub.errors import HfHubHTTPError

    # httpx in huggingface_hub 1.x, httpx2 since 2.4: the base of their own error tells which. A full disk is an OSError
    # too, and none of these.
    theirs = tuple(base for base in HfHubHTTPError.__bases__ if base is not OSError)
    return isinstance(error, (*theirs, ConnectionError, TimeoutError))


_NUMBERS = {name: number for number, name in KINDS.items()}


def _parse_objects(data: bytes, where: str) -> Iterator[GitObject]:
    """The objects of an answer, each with the id that its kind and content give it."""
    start = 0
    while start < len(data):
        end = data.find(b"\0", start, start + 32)
        kind, _, length = data[start : max(end, start)].partition(b" ")
        size = int(length) if length.isdigit() and len(length) < 12 else -1
        if kind not in _NUMBERS or size < 0 or end + 1 + size > len(data):
            raise IntegrityError(f"{where} sends what are no git objects, from byte {start} on")
        start = end + 1 + size
        yield git_object(_NUMBERS[kind], data[end + 1 : start])
