"""Requests to a Hub through `huggingface_hub`, with retries and this library's errors."""

from __future__ import annotations

import json
import logging
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kernels_hub.errors import (
    HubError,
    HubPermissionError,
    IntegrityError,
    KernelsHubError,
    OfflineError,
    RepositoryNotFoundError,
    VersionError,
)
from kernels_hub.hub.endpoints import DISTRUST_SECONDS, REST_SECONDS, RESTING, Endpoint, endpoints_of
from kernels_hub.hub.http_errors import hub_errors, status_of, unless_closed, wait_asked_for
from kernels_hub.hub.lists import files_of
from kernels_hub.hub.tree import BUILD, File, Tree
from kernels_hub.repository.versions import Refs, is_commit
from kernels_hub.version import __version__

if TYPE_CHECKING:
    from huggingface_hub import HfApi

logger = logging.getLogger(__name__)

_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
_TRIES = 5
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 8.0
_PARALLEL = 8
_LOG_SECONDS = 30.0
_MOST_OBJECTS = 64 << 20
_WITHOUT_RELEASE_LOG = frozenset({"https://huggingface.co"})
"""Hubs that are known to keep none: they need not be asked."""
_T = TypeVar("_T")


def check_repository_name(repo_id: str) -> None:
    """Raise RepositoryNotFoundError for a text that can name nothing on a Hub, a mistyped path for one."""
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", repo_id, re.ASCII) is None:
        raise RepositoryNotFoundError(
            f"{repo_id[:200]!r} names no repository: expected org/name (letters, digits, '-', '_' and '.'), "
            "or where a folder or file is taken, one that exists"
        )


@dataclass(frozen=True)
class Connection:
    """A Hub as one user of this library sees it: HF_ENDPOINT, HF_TOKEN and the rest of its environment.

    Where mirrors are configured (see `endpoints`), a question that the Hub cannot answer goes to the next address; what
    the Hub itself says, "there is none" and "not for you" included, is its word.
    """

    user_agent: str | dict[str, str] | None = None
    local_files_only: bool = False
    """Ask nothing, as under HF_HUB_OFFLINE."""
    at: Endpoint | None = field(default=None, compare=False)
    """The one address that is asked; None for each in its turn."""
    tries: int = field(default=_TRIES, compare=False)
    served: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    """What was asked -> the address that answered."""

    @cached_property
    def api(self) -> HfApi:
        """The client of the address that is asked, by default the Hub itself; making it asks nothing."""
        from huggingface_hub import HfApi

        at = self.at
        mirror = at is not None and not at.is_origin
        return HfApi(
            endpoint=self.address,
            # A token that the environment holds is the Hub's own; None is where huggingface_hub looks for it.
            token=((at.token if at is not None else None) or False) if mirror else None,
            library_name="kernels_hub",
            library_version=__version__,
            user_agent=self.user_agent,
        )

    @property
    def endpoint(self) -> str:
        """The Hub's address, whoever answers; the client, slow to import, is not needed to tell."""
        from huggingface_hub import constants

        return constants.ENDPOINT

    @property
    def address(self) -> str:
        """The address that is asked."""
        return self.endpoint if self.at is None else self.at.address

    @property
    def is_mirror(self) -> bool:
        """Whether a mirror is asked, not the Hub itself."""
        return self.at is not None and not self.at.is_origin

    @cached_property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The addresses that may be asked, in the order of preference. Raises KernelsHubError for what is none."""
        return endpoints_of(self.endpoint) if self.at is None else (self.at,)

    def of_origin(self) -> Connection:
        """The same Hub, and no mirror of it: to change it, and for what it alone can say."""
        return self if self.at is not None else replace(self, at=Endpoint(self.endpoint, is_origin=True))

    def anywhere(self, what: str, question: Callable[[Connection], _T]) -> _T:
        """Ask each address in its turn until one answers: `question` gets a connection to it.

        what: as for `hub_errors`; also names what was asked in `served`.

        The next is asked where one cannot be reached, fails or is busy, and where a mirror has nothing, refuses, or is
        refused itself (IntegrityError). What the Hub says itself is the answer, whatever a mirror would say.

        Raises HubError where the Hub cannot be asked and no mirror has it.
        """
        if self.at is not None or len(self.endpoints) == 1:
            answer = question(self)
            self.served[what] = self.address
            return answer
        for tries in range(1, _TRIES + 1):
            failures: list[tuple[Endpoint, Exception]] = []
            for one in RESTING.in_turn(self.endpoints):
                try:
                    answer = question(replace(self, at=one, tries=1))
                except OfflineError:
                    raise
                except (
                    HubPermissionError,
                    RepositoryNotFoundError,
                    VersionError,
                    IntegrityError,
                    HubError,
                    OSError,
                ) as error:
                    _check_may_go_on(one, error)
                    failures.append((one, error))
                    continue
                self.served[what] = one.address
                if failures:
                    logger.info("%s in place of %s: %s", one.address, failures[-1][0].address, what)
                return answer
            again = [error for _, error in failures if status_of(error) in _RETRIED]
            if not again or tries == _TRIES:
                raise _nobody(failures)
            time.sleep(_pause(again[0], tries))
        raise AssertionError("unreachable")

    def distrust(self, what: str) -> None:
        """Ask the mirror last that answered something with other content than it should have."""
        address = self.served.get(what)
        if address is not None and any(
            one.address == address and not one.is_origin for one in self.endpoints
        ):
            RESTING.rest(address, DISTRUST_SECONDS)

    @property
    def is_offline(self) -> bool:
        """Whether the caller, or HF_HUB_OFFLINE, forbids to ask."""
        from huggingface_hub import constants

        return self.local_files_only or bool(constants.HF_HUB_OFFLINE)

    def refs(self, repo_id: str, repo_type: str) -> Refs:
        """The branches and tags, in one call. Raises RepositoryNotFoundError, HubError."""
        what = f"list the versions of {repo_id}"

        def ask(one: Connection) -> Refs:
            repo_refs = one.api.list_repo_refs(repo_id, repo_type=repo_type)
            return Refs(_commits(repo_id, repo_refs.branches), _commits(repo_id, repo_refs.tags))

        return self.anywhere(what, lambda one: one.ask(what, lambda: ask(one)))

    def release_log(self, repo_id: str, repo_type: str, after: int, most_bytes: int) -> bytes | None:
        """The release log from an entry on, as JSON; None where the Hub keeps none, as Hugging Face's does not.

        Of the one address that is asked: who asks compares it with the refs that came from there.

        most_bytes: raises HubError for an answer that is longer.
        """
        if self.address.rstrip("/") in _WITHOUT_RELEASE_LOG:
            return None

        url = f"{self.address}/api/{repo_type}s/{repo_id}/release-log"
        what = f"read the release log of {repo_id}"
        return self.ask(what, lambda: self._bounded("GET", url, most_bytes, params={"after": str(after)}))

    def git_objects(self, repo_id: str, repo_type: str, oids: list[str]) -> bytes:
        """Git objects by id, as many as the address sends at a time; nothing of a Hub that does not answer this."""
        url = f"{self.address}/api/{repo_type}s/{repo_id}/objects"
        what = f"read what is in {oids[0][:12]} of {repo_id}"
        return self.ask(what, lambda: self._bounded("POST", url, _MOST_OBJECTS, body={"oids": oids})) or b""

    def _bounded(
        self,
        method: str,
        url: str,
        most_bytes: int,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
    ) -> bytes | None:
        """An answer of at most so many bytes; None where the Hub knows no such question."""
        from huggingface_hub.utils._http import get_session, hf_raise_for_status

        content = bytearray()
        with get_session().stream(
            method,
            url,
            params=dict(params or {}),
            json=body,
            headers=self.api._build_hf_headers(),
            timeout=_LOG_SECONDS,
        ) as response:
            if response.status_code in (400, 404, 405) and not response.headers.get("X-Error-Code"):
                return None
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > most_bytes:
                    raise HubError(
                        f"{url} answers with more than {most_bytes:,} bytes; nothing of it was used"
                    )
            hf_raise_for_status(response)
        return bytes(content)

    def tree(self, repo_id: str, repo_type: str, commit: str) -> Tree:
        """The files below `build/`, in one call (a thousand files each).

        A mirror has to prove that they are those of the commit: see `commit_proof`.
        """
        what = f"list the variants of {repo_id} at {commit[:12]}"

        def ask(one: Connection) -> Tree:
            return Tree.of(commit, map(listed_file, files_of(one.api, repo_id, repo_type, commit, BUILD)))

        def ask_or_nothing(one: Connection) -> Tree:
            from huggingface_hub.errors import EntryNotFoundError

            try:
                return one.ask(what, lambda: ask(one))
            except RepositoryNotFoundError as error:
                if isinstance(error.__cause__, EntryNotFoundError):
                    return Tree(commit, {})  # The commit is there, and has no such folder.
                raise

        def proven(one: Connection) -> Tree:
            tree = ask_or_nothing(one)
            if one.is_mirror:
                # The Hub says what a commit is. A mirror shows it.
                from kernels_hub.hub.commit_proof import check_commit

                where = f"the mirror {one.address}"
                check_commit(
                    commit, tree.files, lambda oids: one.git_objects(repo_id, repo_type, oids), where
                )
            return tree

        return self.anywhere(what, proven)

    def download(
        self,
        repo_id: str,
        repo_type: str,
        commit: str,
        files: list[File],
        cache_dir: Path,
        force: bool = False,
    ) -> None:
        """Put files into the cache, several at a time; interrupted downloads go on where they stopped."""
        from huggingface_hub.utils.tqdm import tqdm

        def fetch_at(one: Connection, file: File, what: str) -> None:
            with hub_errors(one.address, what), _answers(one.address, what):
                unless_closed(
                    lambda: one.api.hf_hub_download(
                        repo_id,
                        file.path,
                        repo_type=repo_type,
                        revision=commit,
                        cache_dir=cache_dir,
                        force_download=force,
                    )
                )

        def fetch(file: File) -> None:
            what = download_of(repo_id, file)
            self.anywhere(what, lambda one: fetch_at(one, file, what))

        with (
            tqdm(  # type: ignore[no-untyped-call]
                total=len(files), desc=f"{repo_id}@{commit[:7]}", unit="file", leave=False
            ) as progress,
            ThreadPoolExecutor(min(_PARALLEL, len(files) or 1)) as pool,
        ):
            for _ in pool.map(fetch, files):
                progress.update()

    def is_trusted_publisher(self, organisation: str) -> bool:
        """Whether the Hub vouches for an organisation's kernels; a user's name is none. No mirror is asked."""
        hub = self.of_origin()

        def ask() -> bool:
            overview = hub.api.get_organization_overview(organisation)
            return getattr(overview, "trustedKernelPublisher", False) is True

        try:
            return hub.ask(f"ask whether {organisation} is a trusted publisher", ask)
        except RepositoryNotFoundError:
            return False

    def ask(self, what: str, question: Callable[[], _T]) -> _T:
        """Ask one address, and ask again with growing pauses while the Hub is busy or failing."""
        for tries in range(1, self.tries + 1):
            try:
                with hub_errors(self.address, what), _answers(self.address, what):
                    return question()
            except Exception as error:
                if tries == self.tries or status_of(error) not in _RETRIED:
                    raise
                wait = _pause(error, tries)
                logger.info("%s; asking again in %.1f s", error, wait)
                time.sleep(wait)
        raise AssertionError("unreachable")


def download_of(repo_id: str, file: File) -> str:
    """What a download is called in messages, and in `Connection.served`."""
    return f"download {file.path} of {repo_id}"


def _check_may_go_on(one: Endpoint, error: Exception) -> None:
    """Raise an error again that no other address may answer; note what is wrong with the address otherwise."""
    said = isinstance(error, (HubPermissionError, RepositoryNotFoundError, VersionError, IntegrityError))
    if said and one.is_origin:
        raise error  # It is the Hub's own word.
    if isinstance(error, IntegrityError):
        if RESTING.rest(one.address, DISTRUST_SECONDS):
            logger.warning("the mirror %s is not asked for now: %s", one.address, error)
    elif said:
        logger.info("the mirror %s does not have it: %s", one.address, error)
    elif isinstance(error, HubError) or (isinstance(error, OSError) and error.errno is None):
        wait = wait_asked_for(error)
        if RESTING.rest(one.address, REST_SECONDS if wait is None else wait):
            logger.warning("%s; the next address is asked", error)
    else:
        raise error  # This machine's own: a full disk, a folder that may not be written.


def _nobody(failures: list[tuple[Endpoint, Exception]]) -> KernelsHubError:
    """The Hub cannot be asked, and no mirror answers in its place: nothing is known of what the Hub holds."""
    origin = next(error for one, error in failures if one.is_origin)
    others = "; ".join(f"{one.address}: {error}" for one, error in failures if not one.is_origin)
    told = HubError(f"{origin}. No mirror answers in its place: {others}")
    told.__cause__ = origin
    return told


def listed_file(entry: Any) -> File:
    """A file as a Hub lists it. Raises HubError for names of its content that are not of their form."""
    if entry.lfs is not None:
        file = File(entry.path, entry.size, sha256=entry.lfs.sha256)
    else:
        file = File(entry.path, entry.size, blob=entry.blob_id)
    if not file.is_well_formed():
        raise HubError(
            f"the Hub lists {str(entry.path)[:100]!r} with a size or name of its content that is none"
        )
    return file


def _commits(repo_id: str, refs: Iterable[Any]) -> dict[str, str]:
    commits = {}
    for ref in refs:
        name, commit = ref.name, ref.target_commit
        if not isinstance(name, str) or not isinstance(commit, str) or not is_commit(commit):
            raise HubError(
                f"the Hub says that {str(name)[:100]!r} of {repo_id} is at {str(commit)[:100]!r}, which is no commit"
            )
        commits[name] = commit
    return commits


_OF_A_CLIENT = frozenset({"request", "stream"})
"""Methods that huggingface_hub may look for on None: after an error of the connection, a thread closes the client that
all threads share, and another one that just asked for it gets none."""


@contextmanager
def _answers(endpoint: str, what: str) -> Iterator[None]:
    """Raise HubError for an answer that huggingface_hub stumbles over: it parses what should be there."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError) as error:
        if isinstance(error, AttributeError) and error.name in _OF_A_CLIENT:
            raise HubError(
                f"cannot {what} at {endpoint}: the Hub cannot be reached (the connection of another thread failed); "
                "check the connection and HF_ENDPOINT, and try again"
            ) from error
        raise HubError(
            f"cannot {what} at {endpoint}: the answer is not what a Hub says ({type(error).__name__}: "
            f"{str(error)[:200]}); check HF_ENDPOINT"
        ) from error


def _pause(error: Any, tries: int) -> float:
    """Seconds until the next try: what the Hub asks for, or twice as long each time."""
    response = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    asked = "" if response is None else response.headers.get("Retry-After", "")
    longest = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (tries - 1))
    return (
        min(float(asked), _LONGEST_WAIT)
        if asked.isascii() and asked.isdigit()
        else longest * random.uniform(0.5, 1)  # noqa: S311 (jitter)
    )
