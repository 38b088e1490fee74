"""Translates errors of `huggingface_hub` into errors of this library.

    unreachable, timeout, 5xx, 429, any other answer   HubError
    401, 403, a gated repository                       HubPermissionError
    no such repository, file or page (404)             RepositoryNotFoundError
    no such revision                                   VersionError
    HF_HUB_OFFLINE                                     OfflineError

Network trouble is never taken for a statement about what a Hub holds. Errors of the machine itself
(a full disk, a folder that may not be written) pass unchanged.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from kernels_hub.errors import (
    HubError,
    HubPermissionError,
    KernelsHubError,
    OfflineError,
    RepositoryNotFoundError,
    VersionError,
)

_T = TypeVar("_T")
_SHOWN = 400
_TRIES = 5
_OF_THE_NETWORK = frozenset(
    {errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT}
    | {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN}
)


@contextmanager
def hub_errors(endpoint: str, what: str) -> Iterator[None]:
    """Translate what a block that calls `huggingface_hub` raises.

    endpoint: the Hub's address, as messages name it.
    what: what is being done, to complete "cannot …": "list the versions of org/name".
    """
    try:
        yield
    except KernelsHubError:
        raise
    except Exception as error:
        if (translated := translate(error, endpoint, what)) is None:
            raise
        raise translated from error


def unless_closed(question: Callable[[], _T]) -> _T:
    """Ask, and again where the client was closed meanwhile.

    Threads share one client of `huggingface_hub`, and one that cannot connect closes it under all others.
    """
    for _ in range(_TRIES - 1):
        try:
            return question()
        except RuntimeError as error:
            if not _is_closed(error):
                raise
    return question()


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error of `huggingface_hub` (or one translated from it) stands for."""
    response = _response_of(error)
    return None if response is None else int(response.status_code)


def wait_asked_for(error: BaseException) -> float | None:
    """Seconds that the Hub asks to wait before the next try; None where it does not say."""
    response = _response_of(error)
    asked = "" if response is None else response.headers.get("Retry-After", "")
    return float(asked) if asked.isascii() and asked.isdigit() else None


def _response_of(error: BaseException) -> Any:
    link: BaseException | None = error
    while link is not None:
        response = getattr(link, "response", None)
        if isinstance(getattr(response, "status_code", None), int):
            return response
        link = link.__cause__
    return None


def translate(error: Exception, endpoint: str, what: str) -> KernelsHubError | None:
    """The error of this library for one of `huggingface_hub`, or None for one of somebody else."""
    from huggingface_hub import errors as theirs

    problem = f"cannot {what} at {endpoint}"
    if isinstance(error, theirs.OfflineModeIsEnabled):
        return OfflineError(f"{problem}: HF_HUB_OFFLINE is set; unset it to go online")
    if isinstance(error, theirs.HfHubHTTPError):
        return _of_status(error, problem)
    if isinstance(error, theirs.LocalEntryNotFoundError):
        return _not_cached(error, endpoint, what, problem)
    if isinstance(error, theirs.EntryNotFoundError):
        return RepositoryNotFoundError(f"{problem}: {_first_line(error)}")
    if isinstance(error, theirs.HFValidationError):
        return RepositoryNotFoundError(f"{problem}: {_first_line(error)}; a repository's name is org/name")
    if isinstance(error, theirs.LocalTokenNotFoundError):
        return HubPermissionError(f"{problem}: no token; log in with `hf auth login` or set HF_TOKEN")
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
        return translate(error.__cause__, endpoint, what)  # an upload to large file storage wraps its own
    if _is_of_the_network(error) or _is_closed(error):
        return HubError(
            f"{problem}: the Hub cannot be reached ({type(error).__name__}: {_first_line(error)}); "
            "check the connection and HF_ENDPOINT, and try again"
        )
    return None


def _of_status(error: Any, problem: str) -> KernelsHubError:
    from huggingface_hub import errors as theirs

    status: int = error.response.status_code
    said = _said(error)
    if isinstance(error, theirs.GatedRepoError):
        return HubPermissionError(f"{problem}: the repository is gated, ask its owner for access{said}")
    if isinstance(error, theirs.RevisionNotFoundError):
        return VersionError(f"{problem}: no such revision{said}")
    if isinstance(error, theirs.RepositoryNotFoundError):
        return RepositoryNotFoundError(
            f"{problem}: no such repository, or a private one that this token may not see{said}"
        )
    if status in (401, 403):
        advice = "log in with `hf auth login` or set HF_TOKEN" if status == 401 else "use another token"
        return HubPermissionError(
            f"{problem}: the Hub refuses this account or token ({status}); {advice}{said}"
        )
    if status == 404:
        return RepositoryNotFoundError(f"{problem}: there is nothing of that name (404){said}")
    if status == 429:
        wait = error.response.headers.get("Retry-After")
        later = f"in {wait} s" if wait else "later"
        return HubError(f"{problem}: too many requests (429); try again {later}{said}")
    if status >= 500:
        return HubError(f"{problem}: the Hub fails ({status}); try again later{said}")
    return HubError(f"{problem}: the Hub answers {status}{said}")


def _not_cached(error: Exception, endpoint: str, what: str, problem: str) -> KernelsHubError:
    """A file that is not in the cache, where the Hub was not asked or did not answer."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, Exception) and (reason := translate(cause, endpoint, what)) is not None:
        return reason
    return OfflineError(f"{problem}: it is not in the local cache, and the Hub was not asked")


def _is_of_the_network(error: Exception) -> bool:
    from huggingface_hub.errors import HfHubHTTPError

    # httpx in huggingface_hub 1.x, httpx2 since 2.4: the base of their own error tells which.
    transport = tuple(base for base in HfHubHTTPError.__bases__ if base is not OSError)
    if isinstance(error, (*transport, ConnectionError, TimeoutError)):
        return True
    return isinstance(error, OSError) and error.errno in _OF_THE_NETWORK


def _is_closed(error: Exception) -> bool:
    """Whether another thread closed the client before it was asked, as httpx says it."""
    return isinstance(error, RuntimeError) and "client has been closed" in str(error)


def _said(error: Any) -> str:
    """What the server says itself, as one line."""
    text = " ".join(str(error.server_message or "").split())
    return f". It says: {text[:_SHOWN]}" if text else ""


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:_SHOWN]
