"""Addresses of databases: `postgresql://user@host:port/name`, shown and kept without their passwords."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, urlencode

from kernels_hub.errors import KernelsHubError

_STARTS = ("postgresql://", "postgres://")
_SECRET = frozenset({"password", "sslpassword"})


def checked(address: str) -> str:
    """An address that can be one; KernelsHubError otherwise, which does not repeat a password."""
    if not address.startswith(_STARTS) or "\n" in address:
        raise KernelsHubError(
            f"{without_password(address)!r} is not the address of a database; expected "
            "postgresql://user@host:port/name, the password in PGPASSWORD or ~/.pgpass"
        )
    return address


def without_password(address: str) -> str:
    """An address as logs and files hold it."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return address if "password" not in address else "…"
    end = min((rest.find(mark) for mark in "/?#" if mark in rest), default=len(rest))
    user, at, hosts = rest[:end].rpartition("@")
    tail, mark, query = rest[end:].partition("?")
    kept = [pair for pair in parse_qsl(query, keep_blank_values=True) if pair[0].lower() not in _SECRET]
    query = urlencode(kept, quote_via=quote, safe="/,:")
    return f"{scheme}://{user.partition(':')[0]}{at}{hosts}{tail}{mark if query else ''}{query}"
