"""From records to HTML: the templates, their filters, and the headers that pages carry.

The application adds those that every answer carries: nosniff, no-referrer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import RedirectResponse, Response

_HERE = Path(__file__).parent
_STATIC = {"style.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class Crumb(NamedTuple):
    """A step of a path: its name, and the path up to it as an address spells it."""

    name: str
    quoted: str


class Pages:
    """The templates of one server."""

    def __init__(self) -> None:
        self._static = {name: (_HERE / "static" / name).read_bytes() for name in _STATIC}

    @cached_property
    def _environment(self) -> Environment:
        environment = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters.update(
            bytes=_readable_bytes, day=_day, iso=str, crumbs=_crumbs, with_query=with_query, address=quote
        )
        environment.globals.update(style=self._address("style.css"), icon=self._address("icon.svg"))
        return environment

    def render(self, template: str, base: str, status: int = 200, **values: object) -> Response:
        """A page. `base` is the address that clients use for this server."""
        text = self._environment.get_template(template).render(endpoint=base, **values)
        return Response(text, status, dict(_HEADERS), "text/html; charset=utf-8")

    def static(self, name: str, version: str) -> Response | None:
        """A file that pages load; None for any other name."""
        if name not in _STATIC:
            return None
        fresh = f"{name}?v={version}" == self._address(name).rsplit("/", 1)[1]
        headers = {
            **_HEADERS,
            "Cache-Control": "public, max-age=31536000, immutable" if fresh else "no-cache",
        }
        return Response(self._static[name], 200, headers, _STATIC[name])

    def _address(self, name: str) -> str:
        return f"/static/{name}?v={hashlib.sha256(self._static[name]).hexdigest()[:12]}"


def redirect(address: str) -> Response:
    """To another page of this server."""
    return RedirectResponse(address, 303, dict(_HEADERS))


def quoted(name: str) -> str:
    """A name as one segment of an address."""
    return quote(name, safe="")


def with_query(address: str, **values: object) -> str:
    """An address with a query, without what is empty."""
    query = urlencode({key: value for key, value in values.items() if value not in (None, "")})
    return f"{address}?{query}" if query else address


def _readable_bytes(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1000 or unit == "TiB":
            break
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"


def _day(date: str) -> str:
    return date[:10]


def _crumbs(path: str) -> Iterator[Crumb]:
    parts = path.split("/") if path else []
    for index, name in enumerate(parts):
        yield Crumb(name, quote("/".join(parts[: index + 1])))
