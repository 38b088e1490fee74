"""Signed addresses, by which large files are uploaded without a token.

An address is a record of one of the types below. Each type is an operation with a fixed set of fields, of which
some stand in the path and the rest, with the signature, in the query. What is signed is the record as JSON: the
operation, then every field under its name, so that no two records have the same text. Checking an address
builds the record again, path fields from the path and the rest from the query, and refuses a key that is
unknown, repeated or missing, and a value that is not spelled as the server spells it.

An address ends when its time is over, when the token that asked for it does, and when that token's user may no
longer write to the repository; the query, which no log holds, carries the token's id for that.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, ClassVar, TypeVar
from urllib.parse import parse_qsl, urlencode

import msgspec
from msgspec import Meta

from kernels_hub.parsing import Sha256, Struct
from kernels_hub.server.accounts import Token
from kernels_hub.server.refusal import forbidden

Id = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z", min_length=32, max_length=32)]
"""The id of a repository, or of an upload in parts."""
TokenId = Annotated[str, Meta(pattern=r"^[0-9a-f]{12}\Z", min_length=12, max_length=12)]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_SIGNATURE = "signature"
_MOST_QUERY = 4096
_MOST_KEYS = 16
_CLOCK_SECONDS = 60


class Address(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every address says: for which repository, asked for with which token, until when.

    expires: seconds since the epoch, by this server's clock.
    """

    in_path: ClassVar[frozenset[str]] = frozenset({"repository"})

    repository: Id
    token: TokenId
    expires: Count


class UploadFile(Address, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="upload-file"):
    """PUT of a whole large file of `size` bytes and this SHA-256."""

    in_path: ClassVar[frozenset[str]] = frozenset({"repository", "oid"})

    oid: Sha256
    size: Count


class UploadPart(Address, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="upload-part"):
    """PUT of one part of a large file; `upload` is the id of the upload that the parts belong to."""

    in_path: ClassVar[frozenset[str]] = frozenset({"repository", "oid", "number"})

    oid: Sha256
    size: Count
    upload: Id
    number: Annotated[int, Meta(ge=1, le=10_000)]
    part_bytes: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]


class CompleteUpload(Address, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="complete-upload"):
    """POST that makes a large file of its parts."""

    in_path: ClassVar[frozenset[str]] = frozenset({"repository", "oid"})

    oid: Sha256
    size: Count
    upload: Id
    part_bytes: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]


class CompleteStored(Address, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="complete-stored"):
    """POST that makes a large file of what a client sent to the object store; `remote` is the store's own id of it."""

    in_path: ClassVar[frozenset[str]] = frozenset({"repository", "oid"})

    oid: Sha256
    size: Count
    upload: Id
    part_bytes: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    remote: Annotated[str, Meta(pattern=r"^[!-~]+\Z", max_length=1024)]


class UploadXet(Address, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="upload-xet"):
    """Xet uploads to a repository, in whatever hour they began: clients renew tokens, and keep addresses."""


Kind = TypeVar("Kind", bound=Address)


class Signer:
    """Signs and checks addresses with the root's secret."""

    def __init__(self, secret: bytes, seconds: float, now: Callable[[], float] | None = None) -> None:
        """seconds: how long an address is valid, at most. now: seconds since the epoch, this machine's by default."""
        self._secret = secret
        self._seconds = seconds
        self.now = now or _now

    def _signature(self, address: Address) -> str:
        return hmac.new(self._secret, msgspec.json.encode(address), hashlib.sha256).hexdigest()

    def expiry(self, token: Token) -> int:
        """Until when an address that is asked for with this token is valid: never longer than the token."""
        end = self.now() + self._seconds
        return int(end if token.expires is None else min(end, token.expires))

    def query(self, address: Address) -> str:
        """The query of an address: the fields that do not stand in its path, and the signature."""
        fields = {
            name: str(getattr(address, name))
            for name in address.__struct_fields__
            if name not in address.in_path
        }
        return urlencode({**fields, _SIGNATURE: self._signature(address)})

    def check(self, kind: type[Kind], path: Mapping[str, str], query: str) -> Kind:
        """The record of an address that was sent.

        kind: the operation that the path stands for.
        path: the fields that stand in the path, as they were sent; they win over anything else.
        query: as it was sent, still encoded.

        Refuses (403) an address that was changed, is for something else, has expired, or was made by a clock that
        was ahead of this one.
        """
        address = self._read(kind, path, query)
        now = self.now()
        if address.expires < now:
            raise forbidden(
                f"This upload address expired {_duration(now - address.expires)} ago (this server's clock says "
                f"{_moment(now)}); ask for a new one by starting the upload again"
            )
        if address.expires > now + self._seconds + _CLOCK_SECONDS:
            raise forbidden(
                f"This upload address ends {_duration(address.expires - now - self._seconds)} later than any that "
                f"this server makes (its clock says {_moment(now)}): the clock was ahead when it was made, or "
                "addresses last shorter now; ask for a new one by starting the upload again"
            )
        return address

    def _read(self, kind: type[Kind], path: Mapping[str, str], query: str) -> Kind:
        wrong = forbidden("This upload address is not one of this server's; use it exactly as it was given")
        if len(query) > _MOST_QUERY:
            raise wrong
        try:
            pairs = parse_qsl(
                query, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=_MOST_KEYS
            )
        except ValueError:
            raise wrong from None
        sent = dict(pairs)
        signature = sent.pop(_SIGNATURE, "")
        # Path fields are never read from the query: there they are unknown keys.
        expected = [name for name in kind.__struct_fields__ if name not in kind.in_path]
        if len(pairs) != len(expected) + 1 or sorted(sent) != sorted(expected) or set(path) != kind.in_path:
            raise wrong
        text = {**sent, **path}
        try:
            address = msgspec.convert({**text, "type": kind.__struct_config__.tag}, kind, strict=False)
        except (msgspec.MsgspecError, ValueError):
            raise wrong from None
        # Not "+5", "05" or " 5": one spelling for each value.
        if any(str(getattr(address, name)) != value for name, value in text.items()):
            raise wrong
        if not hmac.compare_digest(self._signature(address).encode(), signature.encode("utf-8", "replace")):
            raise wrong
        return address


def _now() -> float:
    return time.time()


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
