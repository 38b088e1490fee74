"""The addresses where a Hub is asked: the Hub itself, its origin, and mirrors of it, in the order of preference.

Environment:
    HF_ENDPOINT                 the Hub: what trust rules, locks and remembered release logs are about
    KERNELS_HUB_MIRRORS         addresses of mirrors, with commas; they are asked after the Hub. The word `origin` among
                                them stands for the Hub: what is before it is asked first
    KERNELS_HUB_MIRROR_TOKENS   `address=token`, with commas; HF_TOKEN is the Hub's alone and is sent to no mirror
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from kernels_hub.errors import KernelsHubError

MIRRORS_VARIABLE = "KERNELS_HUB_MIRRORS"
TOKENS_VARIABLE = "KERNELS_HUB_MIRROR_TOKENS"
ORIGIN = "origin"
REST_SECONDS = 30.0
"""How long an address that failed is asked last, where it does not say itself how long to wait."""
DISTRUST_SECONDS = 600.0
"""The same of a mirror whose content or release log was refused."""
_LONGEST_REST = 3600.0


@dataclass(frozen=True)
class Endpoint:
    """One address. `token` is a mirror's own; None sends none."""

    address: str
    is_origin: bool
    token: str | None = field(default=None, repr=False)


def endpoints_of(origin: str) -> tuple[Endpoint, ...]:
    """The Hub and its mirrors, as the environment has them; the Hub alone where it names no mirror.

    Raises KernelsHubError for what is no address.
    """
    names = _listed(MIRRORS_VARIABLE)
    tokens = dict(_token(item) for item in _listed(TOKENS_VARIABLE))
    if ORIGIN not in names:
        names = [ORIGIN, *names]
    found: dict[str, Endpoint] = {}
    for name in names:
        if name == ORIGIN or _same(name, origin):
            found.setdefault(origin, Endpoint(origin, is_origin=True))
            continue
        address = _checked(name, MIRRORS_VARIABLE)
        found.setdefault(address, Endpoint(address, is_origin=False, token=tokens.get(address)))
    if strangers := [address for address in tokens if address not in found or found[address].is_origin]:
        raise KernelsHubError(
            f"{TOKENS_VARIABLE} has a token for {strangers[0]}, which {MIRRORS_VARIABLE} does not name"
        )
    return tuple(found.values())


def _listed(variable: str) -> list[str]:
    return [item.strip() for item in os.environ.get(variable, "").split(",") if item.strip()]


def _token(item: str) -> tuple[str, str]:
    address, equals, token = item.rpartition("=")
    if not equals or not token or not token.isascii() or not token.isprintable():
        # The text is not shown: it may be a token.
        raise KernelsHubError(
            f"{TOKENS_VARIABLE} has a part that is not address=token; expected http://mirror=hf_…"
        )
    return _checked(address, TOKENS_VARIABLE), token


def _checked(text: str, variable: str) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or port == 0
        or parts.username is not None
        or parts.query
        or parts.fragment
    ):
        shown = "with credentials in it" if parts.username is not None else repr(text[:200])
        raise KernelsHubError(
            f"{variable} names {shown}, which is no mirror's address; expected http(s)://host[:port], or the word "
            f"{ORIGIN!r} for where the Hub itself stands in the order"
        )
    return text.rstrip("/")


def _same(name: str, origin: str) -> bool:
    return name.rstrip("/").lower() == origin.rstrip("/").lower()


class _Resting:
    """Addresses that failed a while ago, for all of a process: none is waited for again and again."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._guard = threading.Lock()

    def rest(self, address: str, seconds: float) -> bool:
        """Ask an address last for a while; whether it was asked in its turn before."""
        now = time.monotonic()
        with self._guard:
            fresh = self._until.get(address, 0.0) <= now
            self._until[address] = max(
                self._until.get(address, 0.0), now + min(max(seconds, 1.0), _LONGEST_REST)
            )
        return fresh

    def in_turn(self, endpoints: Iterable[Endpoint]) -> list[Endpoint]:
        """The addresses in their order, those that rest at the end."""
        now = time.monotonic()
        with self._guard:
            return sorted(endpoints, key=lambda one: self._until.get(one.address, 0.0) > now)

    def clear(self) -> None:
        """Ask every address in its turn again."""
        with self._guard:
            self._until.clear()


RESTING = _Resting()
