"""What becomes of an S3 store's errors: a `Refusal` that clients may try again after, and a line in the log.

Nothing here says an address or a credential to clients, and no log holds a presigned query: botocore signs this
server's own requests in their headers.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.refusal import Refusal

log = logging.getLogger("kernels_hub.server.objects")

MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
"""How stores say that there is no such object; also to HEAD, which has no body to say more."""
GONE = frozenset({"NoSuchUpload", *MISSING})
_WRONG_CLOCKS = frozenset({"RequestTimeTooSkewed", "RequestExpired", "RequestInTheFuture"})
_WRONG_PARTS = frozenset({"InvalidPart", "InvalidPartOrder", "EntityTooSmall"})
_RETRY, _RETRY_LATER = "5", "60"
_IMPORTING = threading.Lock()


def error_code(error: Exception) -> str:
    """The code of a botocore ClientError; nothing for another error."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def _status(error: Exception) -> int:
    response = getattr(error, "response", None)
    found = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) if isinstance(response, dict) else 0
    return int(found or 0)


def not_installed() -> KernelsHubError:
    """What to do where boto3 is missing."""
    return KernelsHubError("--objects s3://… needs boto3; pip install 'kernels-hub[s3]' brings it")


def load_boto3() -> None:
    """Import boto3, on one thread at a time. Raises KernelsHubError where it is missing.

    Its modules import each other in a circle: of two threads that begin at once, Python gives one what is half there.
    """
    with _IMPORTING:
        try:
            importlib.import_module("boto3.s3.transfer")
        except ModuleNotFoundError as error:
            raise not_installed() from error


def unavailable(what: str) -> Refusal:
    """503: the store does not answer, or answers that it cannot now."""
    log.warning("the object store does not serve: %s", what)
    return Refusal(
        503,
        "The store of large files does not answer; nothing was changed, try again",
        headers={"Retry-After": _RETRY},
    )


def misconfigured(what: str, does: str = "refuses this server") -> Refusal:
    """502: the store refuses this server; an administrator has to look. does: what clients are told of it."""
    log.error("the object store %s: %s", does, what)
    return Refusal(
        502,
        f"The store of large files {does}; nothing was changed, tell its administrator",
        headers={"Retry-After": _RETRY_LATER},
    )


@contextmanager
def answering(what: str) -> Iterator[None]:
    """Turn what botocore raises into a Refusal, but for an object that is missing: FileNotFoundError.

    what: the operation, for the log.
    """
    load_boto3()
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ClientError as error:
        code, status = error_code(error), _status(error)
        if code in MISSING:
            raise FileNotFoundError(what) from None
        if code in _WRONG_PARTS:
            raise Refusal(400, f"The store of large files refuses the parts of this upload: {code}") from None
        if status >= 500 or code in ("SlowDown", "RequestTimeout", "InternalError", "503"):
            raise unavailable(f"{what}: {code}") from error
        if code in _WRONG_CLOCKS:
            raise misconfigured(f"{what}: {code}", "refuses this server's clock") from error
        raise misconfigured(f"{what}: {code} (status {status})") from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise misconfigured(f"{what}: {error}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") from error
    except (BotoCoreError, Boto3Error, HTTPError, OSError) as error:
        # An OSError is a connection's that broke while a body was read; files have their own words.
        if isinstance(error, FileNotFoundError):
            raise
        raise unavailable(f"{what}: {type(error).__name__}") from error
