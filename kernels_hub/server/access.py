"""Access rules: who may do what. Every handler asks here; nothing else decides.

                         anonymous   other user   reader     writer      admin
    public: see, get     yes         yes          yes        yes         yes
    gated: get files     401         with grant   yes        yes         yes
    private: see         401         404          yes        yes         yes
    commit, branch, tag  401         403          403        yes         yes
    delete, settings     401         403          403        403         yes

Reader, writer and admin are roles in the namespace; a user is admin of their own. A read token makes
anybody a reader at most; a token of one repository is anonymous everywhere else. On a mirror nobody changes anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels_hub.server.accounts import Accounts, Token
from kernels_hub.server.mirror.state import MirrorState
from kernels_hub.server.refusal import Refusal, forbidden, login_required, repository_not_found
from kernels_hub.server.repositories import Repositories, Repository

_LEVELS = {None: 0, "read": 1, "write": 2, "admin": 3}


@dataclass(frozen=True)
class Caller:
    """Who sends a request: a token's user, or nobody."""

    token: Token | None = None

    @property
    def user(self) -> str | None:
        """The user's name, None for an anonymous request."""
        return self.token.user if self.token else None


class Access:
    """The table above, over the rows."""

    def __init__(self, accounts: Accounts, repositories: Repositories, mirror: MirrorState) -> None:
        self._accounts = accounts
        self._repositories = repositories
        self._mirror = mirror

    def _covered(self, caller: Caller, full_name: str) -> bool:
        """Whether the caller's token speaks for a repository."""
        scope = caller.token.repository if caller.token else None
        return scope is None or scope.lower() == full_name.lower()

    def _level(self, caller: Caller, namespace: str, name: str) -> int:
        if caller.token is None or not self._covered(caller, f"{namespace}/{name}"):
            return 0
        return _LEVELS[self._accounts.role_in(namespace, caller.token.user)]

    def may_see(self, caller: Caller, repository: Repository) -> bool:
        """Whether a repository is shown in lists."""
        return not repository.private or self._level(caller, repository.namespace, repository.name) >= 1

    def visible(self, caller: Caller, kind: str, namespace: str, name: str) -> Repository:
        """A repository that the caller may know of; the same refusal for a missing and a hidden one."""
        repository = self._repositories.find(kind, namespace, name)
        if repository is None or not self.may_see(caller, repository):
            raise repository_not_found(anonymous=caller.token is None)
        return repository

    def check_download(self, caller: Caller, repository: Repository) -> None:
        """Refuse files of a gated repository to those without access."""
        if not repository.gated or self._level(caller, repository.namespace, repository.name) >= 1:
            return
        if caller.user is None or not self._covered(caller, repository.full_name):
            message = f"Access to {repository.full_name} is restricted; log in and ask for access"
            raise Refusal(401 if caller.token is None else 403, message, code="GatedRepo")
        status = self._repositories.grant_of(repository, caller.user)
        if status != "accepted":
            reason = {"pending": "your request waits for an answer", "rejected": "your request was refused"}
            raise Refusal(
                403,
                f"Access to {repository.full_name} is restricted: {reason.get(status or '', 'ask its owners for it')}",
                code="GatedRepo",
            )

    def check_write(self, caller: Caller, namespace: str, name: str, *, admin: bool = False) -> None:
        """Refuse a change to a repository (which may not exist yet) to those who may not make it."""
        self._mirror.check_writable()
        if caller.token is None:
            raise login_required()
        full_name = f"{namespace}/{name}"
        if not self._covered(caller, full_name):
            raise forbidden(f"This token is for {caller.token.repository} only, not for {full_name}")
        if caller.token.role != "write":
            raise forbidden(f"This token may only read; changing {full_name} needs a write token")
        needed = "admin" if admin else "write"
        if self._level(caller, namespace, name) < _LEVELS[needed]:
            raise forbidden(f"{caller.token.user} has no {needed} access to {namespace}")

    def writable(
        self, caller: Caller, kind: str, namespace: str, name: str, *, admin: bool = False
    ) -> Repository:
        """A repository that the caller may change."""
        repository = self.visible(caller, kind, namespace, name)
        self.check_write(caller, repository.namespace, repository.name, admin=admin)
        return repository
