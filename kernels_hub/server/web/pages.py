"""From records to HTML: the templates, their filters, and the headers that pages carry.

The application adds those that every answer carries: nosniff, no-referrer.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from kernels_hub.server.audit import utc
from kernels_hub.server.call import HubRequest
from kernels_hub.server.refusal import Refusal

_HERE = Path(__file__).parent
_STATIC = {"style.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml"}
SCRIPT = (_HERE / "static" / "page.js").read_text(encoding="utf-8")
"""The one script of the pages, which stands in each of them; the policy lets a browser run this text and no other."""
_POLICY = (
    f"default-src 'none'; script-src 'sha256-{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}'; "
    "style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
    "Referrer-Policy": "same-origin",  # without a referrer browsers send no Origin with a form
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
        environment.globals.update(
            # A file of this package, which no request reaches.
            script=Markup(SCRIPT),  # noqa: S704
            style=self._address("style.css"),
            icon=self._address("icon.svg"),
        )
        return environment

    def render(self, template: str, call: HubRequest, status: int = 200, **values: object) -> Response:
        """A page, with the name of whoever is signed in; theirs is kept by no cache."""
        session = call.session
        text = self._environment.get_template(template).render(
            endpoint=self.endpoint(call),
            user=session.token.user if session else None,
            form_key=session.form_key if session else "",
            mirror=_mirror_values(call),
            **values,
        )
        return Response(text, status, self._kept(call), "text/html; charset=utf-8")

    @staticmethod
    def endpoint(call: HubRequest) -> str:
        """The address that clients use for this server."""
        try:
            return call.base
        except Refusal:
            return ""  # the Host header itself is wrong

    def _kept(self, call: HubRequest) -> dict[str, str]:
        """The headers of an answer; what is somebody's own is kept by no cache."""
        own = call.session is not None or "authorization" in call.request.headers
        return {**_HEADERS, "Cache-Control": "private, no-store"} if own else dict(_HEADERS)

    def picture(self, content: bytes, kind: str, call: HubRequest) -> Response:
        """A picture of somebody's repository: by itself it may load nothing, run nothing, and be no part of a page."""
        policy = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
        headers = {
            **self._kept(call),
            "Content-Security-Policy": policy,
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        return Response(content, 200, headers, kind)

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


def _mirror_values(call: HubRequest) -> dict[str, object] | None:
    """What the head of every page says on a mirror."""
    origin = call.hub.mirror.origin()
    if origin is None:
        return None
    age = origin.age()
    return {
        "address": origin.address,
        "time": utc(origin.caught_up),
        "age": None if age is None else _readable_age(age),
        "problem": bool(origin.problem),
    }


def _readable_age(seconds: float) -> str:
    for name, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {name}"
    return f"{int(seconds)} seconds"


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
