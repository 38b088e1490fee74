"""Addresses of S3-compatible stores: `s3://bucket/prefix?endpoint=https://…&region=…`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit

from kernels_hub.errors import KernelsHubError

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_SEGMENT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_SECONDS = re.compile(r"[1-9][0-9]{0,3}")
_REGION = re.compile(r"[a-z0-9-]{1,64}")
_KEYS = ("endpoint", "region", "public", "addressing", "direct", "timeout")
_EXPECTED = "expected s3://bucket/prefix?endpoint=https://host:port&region=name"


@dataclass(frozen=True)
class S3Address:
    """Where a bucket is, and how it is spoken to.

    endpoint: the server's address; None is AWS's, of the region.
    public: the endpoint in the addresses that clients get, where theirs is another.
    addressing: "path" (endpoint/bucket) or "virtual" (bucket.endpoint).
    direct: whether clients exchange content with the store themselves.
    timeout: seconds that the store may take to answer, each of three times that it is asked.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    public: str | None = None
    addressing: str = "path"
    direct: bool = True
    timeout: int = 60

    @classmethod
    def parse(cls, text: str) -> S3Address:
        """Raises KernelsHubError for anything that is no such address, and for one with credentials in it."""
        try:
            parts = urlsplit(text)
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError as error:
            raise KernelsHubError(f"the address of the object store is none ({error}); {_EXPECTED}") from None
        if parts.scheme != "s3":
            raise KernelsHubError(f"large files take the address of an S3-compatible store; {_EXPECTED}")
        if "@" in parts.netloc:
            raise KernelsHubError(
                "the address of the object store must not hold credentials: set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY in the environment, or use a profile, as boto3 reads them"
            )
        query = dict(pairs)
        if len(query) != len(pairs) or parts.fragment or (unknown := sorted(set(query) - set(_KEYS))):
            named = f" {unknown[0]!r}" if not parts.fragment and len(query) == len(pairs) else ""
            raise KernelsHubError(
                f"the address of the object store has a setting{named} that is unknown or given twice; known are "
                f"{', '.join(_KEYS)}"
            )
        prefix = parts.path.strip("/")
        if not _BUCKET.fullmatch(parts.netloc) or ".." in parts.netloc:
            raise KernelsHubError(
                f"the address of the object store: {parts.netloc!r} cannot name a bucket; {_EXPECTED}"
            )
        if prefix and not all(_SEGMENT.fullmatch(segment) for segment in prefix.split("/")):
            raise KernelsHubError(
                f"the address of the object store: {prefix!r} is no prefix; it takes letters, digits, '.', '_' and '-' "
                "between slashes"
            )
        endpoint, region = query.get("endpoint"), query.get("region")
        if region is not None and not _REGION.fullmatch(region):
            raise KernelsHubError(f"the address of the object store: {region!r} is no region")
        addressing = query.get("addressing", "path" if endpoint else "virtual")
        if addressing not in ("path", "virtual"):
            raise KernelsHubError(
                f"the address of the object store: addressing takes path or virtual, not {addressing!r}"
            )
        if (direct := query.get("direct", "yes")) not in ("yes", "no"):
            raise KernelsHubError(f"the address of the object store: direct takes yes or no, not {direct!r}")
        if not _SECONDS.fullmatch(timeout := query.get("timeout", "60")):
            raise KernelsHubError(
                f"the address of the object store: timeout takes 1 to 9999 seconds, not {timeout!r}"
            )
        return cls(
            parts.netloc,
            prefix,
            _endpoint("endpoint", endpoint),
            region,
            _endpoint("public", query.get("public")),
            addressing,
            direct == "yes",
            int(timeout),
        )

    @property
    def place(self) -> str:
        """What tells one store from another; the rest says how it is reached, and may change."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def __str__(self) -> str:
        settings = {
            "endpoint": self.endpoint,
            "region": self.region,
            "public": self.public,
            "addressing": self.addressing
            if self.addressing != ("path" if self.endpoint else "virtual")
            else None,
            "direct": None if self.direct else "no",
            "timeout": None if self.timeout == 60 else str(self.timeout),
        }
        query = urlencode({key: value for key, value in settings.items() if value is not None}, safe=":/[]")
        return f"{self.place}?{query}" if query else self.place


def _endpoint(name: str, text: str | None) -> str | None:
    if text is None:
        return None
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        valid = False
    if not valid or "@" in parts.netloc or parts.path.strip("/") or parts.query or parts.fragment:
        raise KernelsHubError(
            f"the address of the object store: {name} takes http://host:port or https://host:port and nothing more"
        )
    return f"{parts.scheme}://{parts.netloc}"
