"""Sessions of the web pages: a token, given once to sign in, stands behind a cookie until it ends.

A session may do what its token may, and ends with it: a token that is revoked or expires signs out every browser that
it signed in. The cookie is 32 random bytes, of which only the SHA-256 is stored; the key of forms is derived from it,
so that a form is only accepted from a page that this server made for this session.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from kernels_hub.server.accounts import Accounts, Token
from kernels_hub.server.database import Database
from kernels_hub.server.database.schema import Index, Schema
from kernels_hub.server.database.seam import ALL_ROWS

COOKIE = "kernels_hub_session"
"""The cookie's name; over TLS it begins with `__Host-`, so that no other host of the domain can set it."""
SCHEMA = Schema(
    """
CREATE TABLE IF NOT EXISTS sessions (
    sha256 BLOB PRIMARY KEY,
    token TEXT NOT NULL REFERENCES tokens ON DELETE CASCADE,
    expires REAL NOT NULL
) WITHOUT ROWID;
""",
    indexes=(Index("sessions_token", "sessions", "token"),),
)
_MOST_OF_A_TOKEN = 32
"""Sessions of one token; the one that would end first makes room."""


@dataclass(frozen=True)
class Session:
    """Who is signed in, and what their forms carry to show that this server made them."""

    token: Token
    form_key: str

    def made(self, form_key: str) -> bool:
        """Whether a form was made for this session."""
        return hmac.compare_digest(form_key.encode("utf-8", "replace"), self.form_key.encode())


class Sessions:
    """The sessions of one Hub."""

    def __init__(self, database: Database, accounts: Accounts, seconds: float) -> None:
        self._database = database
        self._accounts = accounts
        self.seconds = seconds
        """How long a session lasts."""

    def begin(self, token: Token) -> str:
        """Sign a browser in: the cookie's value."""
        secret, now = secrets.token_hex(32), self._database.now()
        with self._database.transaction():
            self._database.change("DELETE FROM sessions WHERE expires <= ?", now)
            self._database.change(
                "DELETE FROM sessions WHERE sha256 IN (SELECT sha256 FROM sessions WHERE token = ? "
                "ORDER BY expires DESC LIMIT ? OFFSET ?)",
                *(token.id, ALL_ROWS, _MOST_OF_A_TOKEN - 1),
            )
            self._database.change(
                "INSERT INTO sessions VALUES (?, ?, ?)", _digest(secret), token.id, now + self.seconds
            )
        return secret

    def find(self, secret: str) -> Session | None:
        """The session of a cookie; None for one that ended, or never was."""
        row = self._database.row(
            "SELECT token FROM sessions WHERE sha256 = ? AND expires > ?",
            _digest(secret),
            self._database.now(),
        )
        token = self._accounts.token_by_id(row["token"]) if row else None
        return Session(token, _form_key(secret)) if token else None

    def end(self, secret: str) -> None:
        """Sign a browser out; its cookie is worth nothing from now on."""
        self._database.change("DELETE FROM sessions WHERE sha256 = ?", _digest(secret))


def cookie_over(scheme: str) -> str:
    """The cookie's name over "http" or "https"."""
    return f"__Host-{COOKIE}" if scheme == "https" else COOKIE


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _form_key(secret: str) -> str:
    return hmac.digest(secret.encode("utf-8", "surrogatepass"), b"form", "sha256").hex()
