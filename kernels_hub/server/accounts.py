"""Users, organisations and tokens: what `kernels-hub hub` administers and requests are checked against.

A token is `hf_` and 40 random letters; only its SHA-256 is stored. Names are unique without regard to
case, users and organisations together.
"""

from __future__ import annotations

import hashlib
import secrets
import string
import time
from dataclasses import dataclass

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.audit import Audit, utc
from kernels_hub.server.database import Database, Row, RowConflictError
from kernels_hub.server.paths import checked_account_name, is_name
from kernels_hub.server.refusal import Refusal

ROLES_OF_TOKENS = ("read", "write")
ROLES_OF_MEMBERS = ("admin", "write", "read")
_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True)
class Account:
    """A user or an organisation; `trusted` marks a trusted kernel publisher."""

    name: str
    kind: str
    trusted: bool
    created: float


@dataclass(frozen=True)
class Token:
    """What a token allows, without the token. `repository` ("org/name") limits it to that one.

    `id` is the token's for as long as it exists, and public: lists and logs show it.
    """

    id: str
    user: str
    role: str
    repository: str | None
    created: float
    expires: float | None


@dataclass(frozen=True)
class Membership:
    """A user's role in an organisation."""

    organisation: str
    user: str
    role: str


class Accounts:
    """The accounts of one Hub."""

    def __init__(self, database: Database, audit: Audit) -> None:
        self._database = database
        self._audit = audit

    # -- users and organisations

    def add_user(self, name: str, *, trusted: bool = False) -> Account:
        """A new user. Raises KernelsHubError where the name is taken or cannot be one."""
        with self._database.transaction():
            self._add(name, "user", trusted)
            self._audit.record("user.add", name)
        return self.required(name, "user")

    def add_organisation(self, name: str, admin: str, *, trusted: bool = False) -> Account:
        """A new organisation with one member, its admin."""
        admin = self.required(admin, "user").name
        with self._database.transaction():
            self._add(name, "org", trusted)
            self._database.change("INSERT INTO members VALUES (?, ?, 'admin')", name, admin)
            self._audit.record("org.add", name, admin=admin, trusted="yes" if trusted else "")
        return self.required(name, "org")

    def add_of_origin(self, name: str, kind: str, trusted: bool) -> None:
        """Have an account as the origin of this mirror does, without members; one that is there stays what it is."""
        known = self.find(name)
        with self._database.transaction():
            if known is None:
                self._add(name, kind, trusted)
                self._audit.record(f"{kind}.add", name, trusted="yes" if trusted else "")
            elif known.kind == "org" and known.trusted != trusted:
                self.set_trusted(name, trusted)

    def _add(self, name: str, kind: str, trusted: bool) -> None:
        try:
            checked_account_name(name)
        except Refusal as refusal:
            raise KernelsHubError(refusal.message) from None
        try:
            self._database.change(
                "INSERT INTO accounts VALUES (?, ?, ?, ?)", name, kind, int(trusted), time.time()
            )
        except RowConflictError:
            raise KernelsHubError(
                f"there is an account {name!r} already (case does not count, and users and organisations share names)"
            ) from None

    def set_trusted(self, name: str, trusted: bool) -> None:
        """Set or clear an organisation's trusted-publisher flag."""
        name = self.required(name, "org").name
        with self._database.transaction():
            self._database.change("UPDATE accounts SET trusted = ? WHERE name = ?", int(trusted), name)
            self._audit.record("org.trust", name, trusted="yes" if trusted else "no")

    def set_member(self, organisation: str, user: str, role: str | None) -> None:
        """Give a user a role in an organisation; None takes it away. One admin always stays."""
        organisation, user = self.required(organisation, "org").name, self.required(user, "user").name
        if role is not None and role not in ROLES_OF_MEMBERS:
            raise KernelsHubError(
                f"{role!r} is no role of members; expected one of {', '.join(ROLES_OF_MEMBERS)}"
            )
        with self._database.transaction():
            self._database.change(
                'DELETE FROM members WHERE organisation = ? AND "user" = ?', organisation, user
            )
            if role is not None:
                self._database.change("INSERT INTO members VALUES (?, ?, ?)", organisation, user, role)
            if not any(member.role == "admin" for member in self.members(organisation)):
                raise KernelsHubError(f"{user} is the last admin of {organisation}; make another one first")
            self._audit.record("org.member", organisation, user=user, role=role or "none")

    def remove(self, name: str, kind: str) -> None:
        """Remove a user (with tokens) or an organisation; refused while it owns repositories."""
        account = self.required(name, kind)
        with self._database.transaction():
            owned = self._database.row(
                "SELECT COUNT(*) AS n, MIN(name) AS first FROM repositories WHERE namespace = ?", account.name
            )
            if owned is not None and owned["n"]:
                raise KernelsHubError(
                    f"{account.name} owns {owned['n']} repositories ({account.name}/{owned['first']}, …); "
                    "delete or move them first"
                )
            for membership in self.organisations_of(account.name):
                others = [m for m in self.members(membership.organisation) if m.user != account.name]
                if membership.role == "admin" and not any(m.role == "admin" for m in others):
                    raise KernelsHubError(
                        f"{account.name} is the last admin of {membership.organisation}; make another one first"
                    )
            self._database.change("DELETE FROM accounts WHERE name = ?", account.name)
            self._audit.record(f"{kind}.remove", account.name)

    def find(self, name: str) -> Account | None:
        """The account of a name, in any case."""
        row = self._database.row("SELECT * FROM accounts WHERE name = ?", name) if is_name(name) else None
        return _account(row) if row else None

    def required(self, name: str, kind: str) -> Account:
        """The account of a name and kind, or KernelsHubError."""
        account = self.find(name)
        if account is None or account.kind != kind:
            what = "user" if kind == "user" else "organisation"
            known = ", ".join(other.name for other in self.all(kind)[:5]) or "none yet"
            raise KernelsHubError(
                f"there is no {what} {name!r} (there are: {known}); `kernels-hub hub {kind} add` adds one"
            )
        return account

    def all(self, kind: str) -> list[Account]:
        """Every user ("user") or organisation ("org"), by name."""
        rows = self._database.rows("SELECT * FROM accounts WHERE kind = ? ORDER BY name", kind)
        return [_account(row) for row in rows]

    def members(self, organisation: str) -> list[Membership]:
        """Who belongs to an organisation."""
        rows = self._database.rows(
            'SELECT * FROM members WHERE organisation = ? ORDER BY "user"', organisation
        )
        return [Membership(row["organisation"], row["user"], row["role"]) for row in rows]

    def organisations_of(self, user: str) -> list[Membership]:
        """What a user belongs to."""
        rows = self._database.rows('SELECT * FROM members WHERE "user" = ? ORDER BY organisation', user)
        return [Membership(row["organisation"], row["user"], row["role"]) for row in rows]

    def role_in(self, namespace: str, user: str) -> str | None:
        """A user's role in a namespace: admin of their own, as a member of an organisation, or None."""
        if namespace.lower() == user.lower():
            return "admin"
        row = self._database.row(
            'SELECT role FROM members WHERE organisation = ? AND "user" = ?', namespace, user
        )
        return str(row["role"]) if row else None

    # -- tokens

    def new_token(
        self, user: str, role: str, *, repository: str | None = None, expires: float | None = None
    ) -> tuple[str, Token]:
        """A new token, which is shown this once, and what it allows.

        repository: "org/name" limits it to that repository (which need not exist yet).
        expires: seconds since the epoch; None never.
        """
        user = self.required(user, "user").name
        if role not in ROLES_OF_TOKENS:
            raise KernelsHubError(f"{role!r} is no role of tokens; expected read or write")
        if repository is not None and not (
            repository.count("/") == 1 and all(is_name(part) for part in repository.split("/"))
        ):
            raise KernelsHubError(f"{repository!r} is not a repository's id; expected org/name")
        secret = "hf_" + "".join(secrets.choice(_LETTERS) for _ in range(40))
        token = Token(secrets.token_hex(6), user, role, repository, self._database.now(), expires)
        with self._database.transaction():
            self._database.change(
                "INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?)",
                *(
                    token.id,
                    _digest(secret),
                    token.user,
                    token.role,
                    token.repository,
                    token.created,
                    token.expires,
                ),
            )
            until = "" if expires is None else utc(expires)
            self._audit.record(
                "token.new", token.id, user=user, role=role, repository=repository, until=until
            )
        return secret, token

    def tokens(self, user: str | None = None) -> list[Token]:
        """Every token, or a user's, oldest first."""
        if user is not None:
            user = self.required(user, "user").name
            rows = self._database.rows('SELECT * FROM tokens WHERE "user" = ? ORDER BY created', user)
        else:
            rows = self._database.rows("SELECT * FROM tokens ORDER BY created")
        return [_token(row) for row in rows]

    def remove_token(self, identifier: str) -> Token:
        """Revoke a token, by its id or by the token itself."""
        row = self._database.row(
            "SELECT * FROM tokens WHERE id = ? OR sha256 = ?", identifier, _digest(identifier)
        )
        if row is None:
            raise KernelsHubError("there is no such token; `kernels-hub hub token list` shows their ids")
        with self._database.transaction():
            self._database.change("DELETE FROM tokens WHERE id = ?", row["id"])
            self._audit.record("token.remove", row["id"], user=row["user"])
        return _token(row)

    def authenticate(self, secret: str) -> Token | None:
        """What a token allows, or None for one that is unknown, revoked or expired."""
        row = self._database.row("SELECT * FROM tokens WHERE sha256 = ?", _digest(secret))
        return _valid(row, self._database.now())

    def token_by_id(self, identifier: str) -> Token | None:
        """What the token of an id allows, or None for one that is unknown, revoked or expired.

        One lookup by the primary key: what was signed for a token (an upload's address) asks at every use.
        """
        row = self._database.row("SELECT * FROM tokens WHERE id = ?", identifier)
        return _valid(row, self._database.now())

    def token_is_valid(self, identifier: str) -> bool:
        """Whether the token of an id exists and has neither expired nor been revoked."""
        return self.token_by_id(identifier) is not None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _valid(row: Row | None, now: float) -> Token | None:
    if row is None or (row["expires"] is not None and row["expires"] <= now):
        return None
    return _token(row)


def _account(row: Row) -> Account:
    return Account(row["name"], row["kind"], bool(row["trusted"]), row["created"])


def _token(row: Row) -> Token:
    return Token(row["id"], row["user"], row["role"], row["repository"], row["created"], row["expires"])
