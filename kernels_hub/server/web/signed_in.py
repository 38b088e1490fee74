"""Pages of an account: signing in with a token, signing out, and the tokens of the account.

    GET  /login            a form for a token; ?next= is where it leads
    POST /login            begins a session
    POST /logout           ends it
    GET  /settings/tokens  the tokens of one's account
    POST /settings/tokens  makes one, shown this once, or revokes one

A form is accepted only where the browser says that a page of this server sent it (Origin, Sec-Fetch-Site), and, once
there is a session, with the session's form key. What a page makes is at most what its session's token is: a new token
has no more rights than that, and does not outlive it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import parse_qs

from starlette.responses import Response

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.accounts import ROLES_OF_TOKENS, Token
from kernels_hub.server.audit import utc
from kernels_hub.server.call import HubRequest, Route
from kernels_hub.server.refusal import Refusal, bad_request, forbidden, too_large
from kernels_hub.server.sessions import Session
from kernels_hub.server.web.pages import Pages, quoted, redirect

Handler = Callable[[HubRequest], Response]
_MOST_FORM_BYTES = 8192
_MOST_FIELDS = 16
_DAY = 24 * 3600.0
_MOST_DAYS = 3650
_LOCAL = re.compile(r"/(?![/\\])[\x21-\x5b\x5d-\x7e]*")
"""A path of this server, as a redirect may lead to it: `//host` and `/\\host` are other servers."""


class SigningIn:
    """The handlers."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def form(self, call: HubRequest) -> Response:
        """The form to sign in; whoever is signed in is led on."""
        if call.session is not None:
            return redirect(_next(call.query("next")))
        return self._pages.render("login.html", call, next=_next(call.query("next")), problem=None)

    def begin(self, call: HubRequest) -> Response:
        """Sign in."""
        fields = _fields(call)
        following = _next(fields.get("next", ""))
        token = call.hub.accounts.authenticate(fields.get("token", "").strip())
        if token is None:
            call.guessed = True
            problem = "This Hub knows no such token, or it has expired."
            return self._pages.render("login.html", call, 403, next=following, problem=problem)
        if (former := call.request.cookies.get(call.cookie)) is not None:
            call.hub.sessions.end(former)
        response = redirect(following)
        _set_cookie(call, response, call.hub.sessions.begin(token), call.hub.sessions.seconds)
        return response

    def end(self, call: HubRequest) -> Response:
        """Sign out."""
        fields = _fields(call)
        if call.session is not None:
            _checked(call, fields)
            call.hub.sessions.end(call.request.cookies[call.cookie])
        response = redirect("/")
        _set_cookie(call, response, "", 0)
        return response

    def tokens(self, call: HubRequest) -> Response:
        """The tokens of whoever is signed in."""
        if call.session is None:
            return redirect(f"/login?next={quoted('/settings/tokens')}")
        return self._tokens(call, call.session)

    def change_tokens(self, call: HubRequest) -> Response:
        """Make a token, or revoke one."""
        fields = _fields(call)
        session = _checked(call, fields)
        match fields.get("action"):
            case "create":
                return self._create(call, session, fields)
            case "revoke":
                return self._revoke(call, session, fields.get("id", ""))
            case other:
                raise bad_request(f"action is create or revoke, not {str(other)[:100]!r}")

    def _create(self, call: HubRequest, session: Session, fields: Mapping[str, str]) -> Response:
        own, role = session.token, fields.get("role", "read")
        if role not in ROLES_OF_TOKENS:
            raise bad_request(f"role is read or write, not {role[:100]!r}")
        if role == "write" and own.role != "write":
            raise forbidden(
                "You signed in with a token that may only read; it makes tokens that may only read"
            )
        repository = fields.get("repository", "").strip() or own.repository
        if own.repository is not None and (repository or "").lower() != own.repository.lower():
            raise forbidden(
                f"You signed in with a token for {own.repository} only; it makes tokens for that one"
            )
        days = fields.get("days", "").strip()
        if days and not (days.isascii() and days.isdigit() and 1 <= int(days[:9]) <= _MOST_DAYS):
            raise bad_request(f"A token is valid for 1 to {_MOST_DAYS} days, not {days[:100]!r}")
        expires = call.hub.database.now() + int(days[:9]) * _DAY if days else None
        if own.expires is not None:
            expires = own.expires if expires is None else min(expires, own.expires)
        try:
            with call.acting():
                secret, token = call.hub.accounts.new_token(
                    own.user, role, repository=repository, expires=expires
                )
        except KernelsHubError as error:
            raise bad_request(str(error)) from None
        return self._tokens(call, session, secret=secret, made=token)

    def _revoke(self, call: HubRequest, session: Session, identifier: str) -> Response:
        own = session.token
        if identifier not in [token.id for token in call.hub.accounts.tokens(own.user)]:
            raise Refusal(404, "You have no such token; it may be revoked already")
        if identifier != own.id and (own.role != "write" or own.repository is not None):
            raise forbidden("Revoking another token needs one that may write, for every repository")
        with call.acting():
            call.hub.accounts.remove_token(identifier)
        return redirect("/" if identifier == own.id else "/settings/tokens")

    def _tokens(
        self, call: HubRequest, session: Session, *, secret: str | None = None, made: Token | None = None
    ) -> Response:
        rows = [
            {
                "id": token.id,
                "role": token.role,
                "repository": token.repository,
                "created": utc(token.created),
                "expires": None if token.expires is None else utc(token.expires),
                "expired": token.expires is not None and token.expires <= call.hub.database.now(),
                "own": token.id == session.token.id,
            }
            for token in reversed(call.hub.accounts.tokens(session.token.user))
        ]
        return self._pages.render(
            "tokens.html",
            call,
            tokens=rows,
            secret=secret,
            made=made.id if made else None,
            own=session.token,
            may_revoke=session.token.role == "write" and session.token.repository is None,
        )


# -- forms ------------------------------------------------------------------------------------------


def _fields(call: HubRequest) -> dict[str, str]:
    """The fields of a form that a page of this server sent."""
    _check_origin(call)
    kind = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise bad_request("A form is sent as application/x-www-form-urlencoded")
    if len(call.body) > _MOST_FORM_BYTES:
        raise too_large(f"A form has at most {_MOST_FORM_BYTES} bytes")
    try:
        values = parse_qs(
            call.body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
        )
    except ValueError:  # a UnicodeDecodeError is one
        raise bad_request(
            f"The form is not UTF-8, percent-encoded, of at most {_MOST_FIELDS} fields"
        ) from None
    if repeated := [name for name, given in values.items() if len(given) > 1]:
        raise bad_request(f"The form has the field {repeated[0][:100]!r} more than once")
    return {name: given[0] for name, given in values.items()}


def _check_origin(call: HubRequest) -> None:
    """Refuse a form from another site. Browsers send Origin with every form, and say what they know of its site."""
    origin, site = (call.request.headers.get(name) for name in ("origin", "sec-fetch-site"))
    base = call.base.lower()
    host = base.partition("://")[2]
    told = origin is not None or site is not None
    # A page over TLS, too, where a proxy's word for that does not count; never one without for one that has it.
    own_origin = origin is None or origin.lower() in (base, f"https://{host}")
    if not (told and own_origin and site in (None, "same-origin", "none")):
        raise forbidden(f"This form was not sent by a page of {host}; open that page and send it from there")


def _checked(call: HubRequest, fields: Mapping[str, str]) -> Session:
    """The session that a form was made for."""
    if call.session is None:
        raise Refusal(403, "You are signed out; sign in and try again")
    if not call.session.made(fields.get("form_key", "")):
        raise forbidden("This form is not of your session; load its page again")
    return call.session


def _next(path: str) -> str:
    """Where signing in leads: a page of this server."""
    return path if _LOCAL.fullmatch(path) else "/"


def _set_cookie(call: HubRequest, response: Response, value: str, seconds: float) -> None:
    response.set_cookie(
        call.cookie,
        value,
        max_age=int(seconds),
        path="/",
        secure=call.base.startswith("https:"),
        httponly=True,
        samesite="lax",
    )


def routes(pages: Pages, page: Callable[[Handler], Handler]) -> Iterator[Route]:
    """The routes; `page` makes pages of refusals."""
    site = SigningIn(pages)
    yield Route("GET HEAD", "/login", page(site.form), page=True, open=True)
    yield Route("POST", "/login", page(site.begin), page=True, open=True, reads=True)
    yield Route("POST", "/logout", page(site.end), page=True, open=True, reads=True)
    yield Route("GET HEAD", "/settings/tokens", page(site.tokens), page=True)
    yield Route("POST", "/settings/tokens", page(site.change_tokens), page=True, reads=True)
