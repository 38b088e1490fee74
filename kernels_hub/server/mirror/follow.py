"""Rounds of a mirror over the repositories of its origin, one after the other, and what each leaves to tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from kernels_hub.errors import HubError, IntegrityError, KernelsHubError
from kernels_hub.server.database import DatabaseError
from kernels_hub.server.hub import Hub
from kernels_hub.server.mirror.documents import RepositoryDocument
from kernels_hub.server.mirror.origin import Origin, OriginRefusedError, OriginUnreachableError
from kernels_hub.server.mirror.pull import LogRefusedError, arrive, mark_gone, pull
from kernels_hub.server.mirror.state import MIRRORING, hub_id
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.repositories import Repository


@dataclass
class Round:
    """What a round did."""

    looked_at: int = 0
    brought: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    """Repository -> why it is not as at the origin."""
    failed: str = ""
    """Why the round came to no end; "" where it did."""

    @property
    def is_well(self) -> bool:
        """Whether everything is as at the origin."""
        return not self.problems and not self.failed


@contextmanager
def following(hub: Hub, address: str, *, moved: bool = False) -> Iterator[None]:
    """Be the one process that follows an origin into this root.

    Raises KernelsHubError where another does, and where the root mirrors something else or is a Hub of its own.
    """
    with hub.git.alone(MIRRORING) as held:
        if not held:
            raise KernelsHubError(
                f"another process mirrors into {hub.layout.root} already, or prunes it; one does so at a time"
            )
        hub.mirror.check(address, moved=moved)
        yield


def follow_once(
    hub: Hub, origin: Origin, only: Sequence[str] = (), say: Callable[[str], None] = lambda _: None
) -> Round:
    """One round: everything that is new, of the repositories that one of the patterns fits; all without patterns.

    What cannot be brought stays as it is, and is told; the rest goes on. A round ends early where the origin is out of
    reach, and never changes anything in halves.
    """
    done, began = Round(), time.time()
    path: tuple[str, ...] | None = None
    try:
        seen: set[str] = set()
        for page in origin.repositories():
            if (own := hub_id(hub.layout)) in (page.hub, *page.path):
                whose = "is this mirror itself" if page.hub == own else "mirrors this mirror in turn"
                raise KernelsHubError(
                    f"{origin.address} {whose}: mirrors in a circle only keep each other old"
                )
            path = (page.hub, *page.path)
            # Not before it has answered: a mistyped address makes no mirror.
            hub.mirror.begin(origin.address)
            seen.update(row.id for row in page.repositories)
            for row in page.repositories:
                if _is_wanted(row, only):
                    _bring(hub, origin, row, done, say)
        for repository, hidden in mark_gone(hub, origin, seen):
            what = "private there now, and so here" if hidden else "no longer there; it stays here"
            done.gone.append(repository.full_name)
            say(f"{repository.full_name}: {what}")
    except OriginRefusedError as error:
        done.failed = _explained(error)
    except (KernelsHubError, Refusal) as error:
        done.failed = str(error)
    except OSError as error:
        done.failed = f"this mirror's disk: {error.strerror or error}"
    except DatabaseError as error:
        done.failed = f"this mirror's database: {error}"
    with suppress(DatabaseError):  # said already; the next round notes it
        hub.mirror.tried(done.failed, caught_up=0.0 if done.failed else began, path=path)
    return done


def _explained(error: OriginRefusedError) -> str:
    """A refusal of what every mirror asks first."""
    if error.status in (401, 403):
        return f"{error}; give a token of the origin (KERNELS_HUB_ORIGIN_TOKEN, or --token-file)"
    if error.status in (404, 405):
        return f"{error}: it is no Hub of this library, or an older one; only those can be mirrored"
    return str(error)


def _is_wanted(row: RepositoryDocument, only: Sequence[str]) -> bool:
    return not only or any(fnmatchcase(row.full_name.lower(), pattern.lower()) for pattern in only)


def _bring(
    hub: Hub, origin: Origin, row: RepositoryDocument, done: Round, say: Callable[[str], None]
) -> None:
    """One repository. What is wrong with it alone is told; what is wrong with the origin or the disk is raised."""
    done.looked_at += 1
    repository: Repository | None = None
    try:
        repository = _held(hub, row)
        if repository is not None and _is_current(hub, row, repository):
            return
        if row.state is None:
            raise IntegrityError("it is damaged at the origin")
        if repository is None:
            repository = arrive(hub, row)
        entries = pull(hub, origin, row, repository)
    except OriginUnreachableError:
        raise
    except LogRefusedError as error:
        _tell(hub, row, repository, f"refused: {error}. What was held stays as it was", done, say)
    except (HubError, IntegrityError) as error:
        _tell(hub, row, repository, str(error), done, say)
    except Refusal as refusal:
        if refusal.status == 507:
            raise
        _tell(hub, row, repository, refusal.message, done, say)
    except KeyError as error:
        _tell(hub, row, repository, f"damaged here: object {error} is missing; hub fsck says more", done, say)
    else:
        done.brought.append(row.full_name)
        say(f"{row.full_name}: as at the origin{f', {entries} new entries in its log' if entries else ''}")


def _held(hub: Hub, row: RepositoryDocument) -> Repository | None:
    """The repository of the origin as it is here: by its id there, or by the name of one that is gone there."""
    if (known := hub.mirror.by_origin(row.id)) is not None:
        return hub.repositories.by_id(known.repository)
    named = hub.repositories.find(row.type, row.namespace, row.name)
    if named is None:
        return None
    known = hub.mirror.row(named)
    if known is not None and not known.gone:
        # Another repository has taken the name; whether the one that had it is deleted or renamed, this round tells.
        raise IntegrityError("another repository has its name at the origin now; the next round brings it")
    return named


def _is_current(hub: Hub, row: RepositoryDocument, repository: Repository) -> bool:
    known = hub.mirror.row(repository)
    if known is None or known.origin_id != row.id:
        return False
    hub.accounts.add_of_origin(row.namespace, row.owner.kind, row.owner.trusted)
    here = (known.state, repository.full_name, repository.private, repository.gated)
    same = here == (row.state, row.full_name, row.private, row.gated)
    if same and (known.gone or known.problem):
        hub.mirror.note(repository, row.id, row.state)
    return same


def _tell(
    hub: Hub,
    row: RepositoryDocument,
    repository: Repository | None,
    problem: str,
    done: Round,
    say: Callable[[str], None],
) -> None:
    done.problems[row.full_name] = problem
    if repository is not None:
        hub.mirror.set_problem(repository.id, problem)
    say(f"{row.full_name}: {problem}")
