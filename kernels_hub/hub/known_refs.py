"""A repository's branches, tags and yanked releases, as its Hub reports them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from kernels_hub.errors import MetadataError, RepositoryNotFoundError, VersionError
from kernels_hub.hub.cache import KnownRefs, RepositoryCache
from kernels_hub.hub.connection import Connection
from kernels_hub.repository.versions import MAIN

logger = logging.getLogger(__name__)

YANKED_FILE = "yanked.json"
_MOST_YANKED = 1 << 20


def known_refs(
    connection: Connection, place: RepositoryCache, fits: Callable[[KnownRefs], bool] = lambda _: True
) -> KnownRefs:
    """The branches, the tags, and which releases are yanked: one call, and one more a new `main`.

    place: the cached part of the repository that is asked about.
    fits: whether there is what is looked for; where a mirror does not have it yet, the next address is asked.

    Raises IntegrityError where the Hub's release log refuses them.
    """

    def ask(one: Connection) -> KnownRefs:
        found = _known_at(one, place)
        if one.is_mirror and not fits(found):
            raise VersionError(f"{place.repo_id} has no version there that fits; the Hub itself may have")
        return found

    return connection.anywhere(f"list the versions of {place.repo_id}", ask)


def _known_at(connection: Connection, place: RepositoryCache) -> KnownRefs:
    """What one address says, checked against the release log there and what is known of the Hub's."""
    from kernels_hub.hub.release_log import checked_refs

    asked = time.time()
    refs, log = checked_refs(connection, place, connection.refs(place.repo_id, place.repo_type))
    yanked = {}
    if refs.tags and (main := refs.branches.get(MAIN)) is not None:
        yanked = _yanked(connection, place, main)
    if log is None or not log.later:
        return KnownRefs(refs, yanked, asked)
    # A mirror that is behind: what this machine knows of the Hub already is not forgotten.
    for tag, reason in log.yanked_later().items():
        yanked.setdefault(tag.removeprefix("v"), reason)
    return KnownRefs(refs, yanked, asked, log.released_later())


def parse_yanked(data: bytes, where: str) -> dict[str, str]:
    """Release -> reason, of a yanked.json. Raises MetadataError for one that is not of the form."""
    from kernels_hub.parsing import Text, parse_json

    advice = 'expected {"1.2.0": "reason"}'
    return parse_json(data, dict[Text, Text], where=where, most_bytes=_MOST_YANKED, advice=advice)


def _yanked(connection: Connection, place: RepositoryCache, main: str) -> dict[str, str]:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError

    repo_id, repo_type = place.repo_id, place.repo_type
    known = try_to_load_from_cache(repo_id, YANKED_FILE, place.root, main, repo_type)
    if known is not None and not isinstance(known, str):
        return {}  # the Hub said once that this commit has none
    try:
        path = connection.ask(
            f"read {YANKED_FILE} of {repo_id}",
            lambda: connection.api.hf_hub_download(
                repo_id, YANKED_FILE, repo_type=repo_type, revision=main, cache_dir=place.root
            ),
        )
        return parse_yanked(Path(path).read_bytes(), f"{repo_id}: {YANKED_FILE} on {MAIN}")
    except RepositoryNotFoundError as error:
        if isinstance(error.__cause__, EntryNotFoundError):
            return {}
        raise
    except (OSError, MetadataError) as error:
        logger.warning("%s; no release of it is taken as yanked", error)
        return {}
