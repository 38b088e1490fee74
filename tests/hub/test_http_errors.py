"""Errors of huggingface_hub become this library's, from real answers of a real socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import http_backoff

from kernels_hub.errors import (
    BuildError,
    HubError,
    HubPermissionError,
    KernelsHubError,
    OfflineError,
    RepositoryNotFoundError,
    VersionError,
)
from kernels_hub.hub.connection import _answers
from kernels_hub.hub.http_errors import hub_errors, status_of, unless_closed


class _Answers(BaseHTTPRequestHandler):
    """GET …/<status>-<code> answers with that status and that X-Error-Code."""

    def do_GET(self) -> None:
        status, _, code = self.path.rpartition("/")[2].partition("-")
        self.send_response(int(status))
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", "says the server")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


STATUSES = {
    "400": HubError,
    "401": HubPermissionError,
    "401-RepoNotFound": RepositoryNotFoundError,  # what an anonymous caller may not see is hidden so
    "403": HubPermissionError,
    "403-GatedRepo": HubPermissionError,
    "404": RepositoryNotFoundError,
    "404-RepoNotFound": RepositoryNotFoundError,
    "404-RevisionNotFound": VersionError,
    "404-EntryNotFound": RepositoryNotFoundError,
    "409": HubError,
    "412": HubError,
    "418": HubError,
    "429": HubError,
    "500": HubError,
    "503": HubError,
}


@pytest.mark.parametrize("answer", STATUSES)
def test_an_answer(answer: str, endpoint: str):
    with pytest.raises(KernelsHubError) as caught, hub_errors(endpoint, "look at org/name"):
        HfApi(endpoint=endpoint).model_info(f"org/{answer}")
    assert type(caught.value) is STATUSES[answer]
    assert str(caught.value).startswith(f"cannot look at org/name at {endpoint}: ")
    assert "says the server" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert status_of(caught.value) == int(answer[:3])


def test_nobody_listens():
    with (
        pytest.raises(HubError, match=r"cannot be reached \(ConnectError") as caught,
        hub_errors("there", "x"),
    ):
        HfApi(endpoint="http://127.0.0.1:1").model_info("org/name")
    assert type(caught.value) is HubError
    assert status_of(caught.value) is None


def _not_cached(cause: Exception | None) -> LocalEntryNotFoundError:
    error = LocalEntryNotFoundError("not here")
    error.__cause__ = cause
    return error


def _wrapped(cause: Exception | None) -> RuntimeError:
    error = RuntimeError("Error while uploading 'x' to the Hub.")
    error.__cause__ = cause
    return error


def test_a_status_is_found_behind_an_upload(endpoint: str):
    def upload() -> None:
        try:
            HfApi(endpoint=endpoint).model_info("org/503")
        except Exception as error:
            raise RuntimeError("Error while uploading") from error

    with pytest.raises(HubError) as caught, hub_errors(endpoint, "upload"):
        upload()
    assert status_of(caught.value) == 503


def test_a_client_that_another_thread_closed(endpoint: str):
    """As where one of several downloads cannot connect: huggingface_hub closes the client that they share."""
    from huggingface_hub.utils import close_session, get_session

    asked: list[int] = []

    def question() -> int:
        shared = get_session()
        if not asked:
            close_session()
        asked.append(1)
        return shared.get(f"{endpoint}/200").status_code

    assert unless_closed(question) == 200 and len(asked) == 2
    asked.clear()
    with pytest.raises(HubError, match="cannot be reached"), hub_errors(endpoint, "download"):
        question()
    with pytest.raises(RuntimeError, match="mistake"):
        unless_closed(lambda: _raise(RuntimeError("a mistake")))


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (_wrapped(TimeoutError("slow")), HubError),
        (_wrapped(ValueError("a mistake")), RuntimeError),
        (_wrapped(None), RuntimeError),
        (OfflineModeIsEnabled("offline"), OfflineError),
        (HFValidationError("Repo id must be …"), RepositoryNotFoundError),
        (_not_cached(None), OfflineError),
        (_not_cached(OfflineModeIsEnabled("offline")), OfflineError),
        (_not_cached(TimeoutError("slow")), HubError),
        (TimeoutError("slow"), HubError),
        (ConnectionResetError(104, "reset"), HubError),
        (OSError(28, "No space left on device"), OSError),
        (PermissionError(13, "denied"), PermissionError),
        (ValueError("a mistake"), ValueError),
        (BuildError("ours"), BuildError),
    ],
)
def test_an_error(error: Exception, expected: type[Exception]):
    with pytest.raises(expected) as caught, hub_errors("http://hub", "do it"):
        raise error
    assert type(caught.value) is expected


def test_a_client_that_another_thread_closed_is_a_hub_that_cannot_be_reached(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads of a download share a client of huggingface_hub, which closes it after an error of the connection."""
    monkeypatch.setattr("huggingface_hub.utils._http.get_session", lambda: None)
    with (
        pytest.raises(HubError, match="cannot ask at .*: the Hub cannot be reached"),
        _answers(endpoint, "ask"),
    ):
        http_backoff("GET", f"{endpoint}/200")
    with pytest.raises(HubError, match="the answer is not what a Hub says"), _answers(endpoint, "list"):
        raise AttributeError("'NoneType' object has no attribute 'get'", name="get")
