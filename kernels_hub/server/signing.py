"""Addresses that are their own credential: large-file uploads are sent without a token.

The signature covers the operation, the repository, the file, its size and the time until which the
address is valid. It stands in the query, which no log holds.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from urllib.parse import urlencode

from kernels_hub.server.refusal import forbidden


class Signer:
    """Signs and checks the fields of an address with the root's secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def _signature(self, fields: Mapping[str, str]) -> str:
        message = "\n".join(f"{key}={fields[key]}" for key in sorted(fields))
        return hmac.new(self._secret, message.encode(), hashlib.sha256).hexdigest()

    def query(self, path: Mapping[str, str], fields: Mapping[str, str], seconds: float) -> str:
        """The query of an address. `path` is signed and stands in the path; `fields` stand in the query."""
        signed = {**fields, "expires": str(int(time.time() + seconds))}
        return urlencode({**signed, "signature": self._signature({**path, **signed})})

    def check(self, path: Mapping[str, str], query: Mapping[str, str]) -> dict[str, str]:
        """The fields of an address's query; 403 for one that was changed, is for something else, or is over."""
        fields = {key: value for key, value in query.items() if key != "signature"}
        expected = self._signature({**path, **fields})
        if not hmac.compare_digest(expected.encode(), query.get("signature", "").encode("utf-8", "replace")):
            raise forbidden("This upload address is not one of this server's")
        if float(fields["expires"]) < time.time():
            raise forbidden("This upload address has expired; ask for a new one")
        return fields
