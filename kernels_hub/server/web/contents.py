"""Content of a repository for its pages: versions, variants, layers; read from its refs and trees.

Nothing here trusts a file: metadata.json may be anything, and then the page says so.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from packaging.version import InvalidVersion, Version

from kernels_hub.server.card import card_data
from kernels_hub.server.listing import Entry, Listing
from kernels_hub.server.refs import BRANCHES, DEFAULT_BRANCH, TAGS, Ref
from kernels_hub.server.refusal import Refusal, entry_not_found, revision_not_found
from kernels_hub.server.repositories import Repository
from kernels_hub.server.store import Store

_METADATA = "metadata.json"
_YANKED = "yanked.json"
_SIGNATURES = {f"{_METADATA}.ed25519": "Ed25519 signature", f"{_METADATA}.sigstore": "Sigstore bundle"}
_NUMBERED = re.compile(r"v(0|[1-9][0-9]{0,8})")
_DEFINITION = re.compile(r"^(?:class|def)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)
_SOURCE_LIMIT = 2 * 1024 * 1024
_READ_LIMIT = 1024 * 1024
_METADATA_LIMIT = 256 * 1024
_NAMES_LIMIT = 200
_NAME_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Revision:
    """A name, its commit, when that was made, and why it was yanked (None where it was not)."""

    name: str
    commit: str
    date: str
    yanked: str | None = None


@dataclass(frozen=True, slots=True)
class VariantFacts:
    """A variant as its folder and metadata.json say."""

    name: str
    files: int
    size: int
    backend: str | None = None
    license: str | None = None
    release: str | None = None
    summary: str | None = None
    layers: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    signatures: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Defined:
    """A layer or function, and where its source is (an empty path where none was found)."""

    name: str
    path: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """What a version holds, over all of its variants."""

    variants: tuple[VariantFacts, ...] = ()
    layers: tuple[Defined, ...] = ()
    functions: tuple[Defined, ...] = ()
    license: str | None = None
    summary: str | None = None
    size: int = 0


class Contents:
    """One repository as it is now, for the time of one request."""

    def __init__(self, store: Store, repository: Repository) -> None:
        self.store = store
        self.repository = repository

    # -- revisions

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """Tags that are versions, newest first; then the other tags, by name."""
        return tuple(sorted(self._refs(TAGS), key=_order))

    @cached_property
    def branches(self) -> tuple[str, ...]:
        """`main` first, then by name."""
        return tuple(sorted(self._refs(BRANCHES), key=lambda name: (name != DEFAULT_BRANCH, name)))

    @cached_property
    def default(self) -> str:
        """The revision that a page shows first: the newest release, the highest vN, or `main`."""
        releases = [name for name in self.tags if is_release(name)]
        counted = (name for name in releases if not _is_prerelease(name) and self._reason(name) is None)
        if (best := next(counted, next(iter(releases), None))) is not None:
            return best
        if numbers := [int(match[1]) for name in self.branches if (match := _NUMBERED.fullmatch(name))]:
            return f"v{max(numbers)}"
        return DEFAULT_BRANCH  # every repository has it

    def revision(self, name: str) -> Revision:
        """A branch, tag or commit. Refuses (404) any other."""
        commit = self.store.resolve(self.repository, name, self._all_refs)
        try:
            date = self.store.commit_info(self.repository, commit).date
        except (KeyError, Refusal):
            raise revision_not_found(name) from None
        return Revision(name, commit, date, self._reason(name) if name in self._refs(TAGS) else None)

    @cached_property
    def yanked(self) -> Mapping[str, str]:
        """Release -> why it was yanked, as `yanked.json` on the main branch says."""
        main = self._refs(BRANCHES).get(DEFAULT_BRANCH)
        entry = None if main is None else self.listing(main).entries.get(_YANKED)
        document = None if entry is None or entry.is_folder else _json(self.read(entry))
        if not isinstance(document, dict):
            return {}
        return {str(release): str(reason)[:_NAME_LENGTH] for release, reason in document.items()}

    @cached_property
    def changed(self) -> Mapping[str, str]:
        """Release -> what became of it, for those that were moved or removed: the release log keeps them."""
        entries = self.store.releases.changed(self.repository)
        what = {"forced-move": "moved by force", "delete": "removed"}
        return {
            tag: f"{what[entry.kind]} on {entry.time[:10]}" + (f": {entry.note}" if entry.note else "")
            for tag, entry in entries.items()
        }

    def _reason(self, tag: str) -> str | None:
        return self.yanked.get(tag.removeprefix("v")) if is_release(tag) else None

    # -- files

    def listing(self, commit: str) -> Listing:
        """Everything in a commit."""
        return self.store.listing(self.repository, commit)

    def entry(self, commit: str, path: str) -> Entry:
        """A file or folder. Refuses (404) where there is none."""
        entry = self.listing(commit).entries.get(path)
        if entry is None:
            raise entry_not_found(path)
        return entry

    def read(self, entry: Entry, limit: int = _READ_LIMIT) -> bytes | None:
        """A file's content, large files included; None for one that is longer than `limit`."""
        if entry.size > limit:
            return None
        if entry.large is not None:
            return self.store.large_files.read(self.repository, entry.large.sha256)
        return self.store.blob(self.repository, entry.oid)

    def text(self, commit: str, path: str, limit: int = _READ_LIMIT) -> str | None:
        """A file as text, or None where it is missing, long or no text."""
        entry = self.listing(commit).entries.get(path)
        content = None if entry is None or entry.is_folder else self.read(entry, limit)
        return None if content is None else content.decode("utf-8", "replace")

    def facts(self, commit: str) -> Facts:
        """Variants, layers, functions and licence of a version."""
        listing = self.listing(commit)
        folders: dict[str, list[Entry]] = {}
        for entry in listing.files():
            parts = entry.path.split("/")
            if len(parts) > 2 and parts[0] == "build":
                folders.setdefault(parts[1], []).append(entry)
        variants = tuple(self._variant(name, files) for name, files in sorted(folders.items())[:_NAMES_LIMIT])
        source = self._kernel_toml(listing)
        places = self._definitions(entry for files in folders.values() for entry in files)
        return Facts(
            variants,
            _defined(_union((variant.layers for variant in variants), source.layers), places),
            _defined(_union((variant.functions for variant in variants), source.functions), places),
            next((variant.license for variant in variants if variant.license), source.license),
            next((variant.summary for variant in variants if variant.summary), source.summary),
            sum(entry.size for entry in listing.files()),
        )

    def _definitions(self, files: Iterable[Entry]) -> dict[str, Defined]:
        """Classes and functions by name: where the first variant that has them defines them."""
        definitions: dict[str, Defined] = {}
        left = _SOURCE_LIMIT
        for entry in sorted(
            files, key=lambda entry: (entry.path.split("/")[1], entry.path.count("/"), entry.path)
        ):
            if not entry.path.endswith(".py") or entry.size > left:
                continue
            left -= entry.size
            text = (self.read(entry) or b"").decode("utf-8", "replace")
            for match in _DEFINITION.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                definitions.setdefault(match[1], Defined(match[1], entry.path, line))
        return definitions

    def card_license(self, commit: str) -> str | None:
        """The licence that the card's YAML names."""
        text = self.text(commit, "README.md")
        licence = None if text is None else card_data(text).get("license")
        return licence[:_NAME_LENGTH] if isinstance(licence, str) else None

    def _variant(self, name: str, files: list[Entry]) -> VariantFacts:
        inside = {entry.path.removeprefix(f"build/{name}/"): entry for entry in files}
        size = sum(entry.size for entry in files)
        signatures = tuple(label for file, label in _SIGNATURES.items() if file in inside)
        if _METADATA not in inside:
            return VariantFacts(name, len(files), size, signatures=signatures, problem="no metadata.json")
        document = _json(self.read(inside[_METADATA], _METADATA_LIMIT))
        if not isinstance(document, dict):
            return VariantFacts(
                name, len(files), size, signatures=signatures, problem="metadata.json is no JSON object"
            )
        ours = _table(document, "kernels-hub")
        return VariantFacts(
            name,
            len(files),
            size,
            _text(_table(document, "backend"), "type"),
            _text(document, "license"),
            _text(ours, "release"),
            _text(ours, "summary"),
            _texts(ours, "layers"),
            _texts(ours, "functions"),
            signatures,
        )

    def _kernel_toml(self, listing: Listing) -> VariantFacts:
        entry = listing.entries.get("kernel.toml")
        content = None if entry is None or entry.is_folder else self.read(entry, _METADATA_LIMIT)
        try:
            document = tomllib.loads((content or b"").decode())
        except (ValueError, RecursionError):
            document = {}
        kernel = _table(document, "kernel")
        return VariantFacts(
            "",
            0,
            0,
            license=_text(kernel, "license"),
            summary=_text(kernel, "summary"),
            layers=_texts(kernel, "layers"),
            functions=_texts(kernel, "functions"),
        )

    @cached_property
    def _all_refs(self) -> Mapping[str, Ref]:
        """As of one moment: where they are rows, each reading asks the database."""
        return self.store.content(self.repository).refs.all()

    def _refs(self, prefix: str) -> dict[str, str]:
        found = self._all_refs.items()
        return {name.removeprefix(prefix): ref.commit for name, ref in found if name.startswith(prefix)}


def is_release(name: str) -> bool:
    """Whether a tag of this name is a version."""
    return _version(name) is not None


def _version(tag: str) -> Version | None:
    try:
        return Version(tag[1:]) if tag.startswith("v") and len(tag) < 60 else None
    except InvalidVersion:
        return None


def _is_prerelease(tag: str) -> bool:
    version = _version(tag)
    return version is not None and version.is_prerelease


class _Descending:
    """Sorts a version before the lower ones."""

    def __init__(self, version: Version) -> None:
        self.version = version

    def __lt__(self, other: _Descending) -> bool:
        return self.version > other.version


def _order(tag: str) -> tuple[bool, Any, str]:
    version = _version(tag)
    return (version is None, 0 if version is None else _Descending(version), tag)


def _json(content: bytes | None) -> object:
    try:
        return None if content is None else json.loads(content)
    except (ValueError, RecursionError):
        return None


def _table(document: Mapping[str, object], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def _text(document: Mapping[str, object], key: str) -> str | None:
    value = document.get(key)
    return value[:_NAME_LENGTH] if isinstance(value, str) and value else None


def _texts(document: Mapping[str, object], key: str) -> tuple[str, ...]:
    value = document.get(key)
    names = value if isinstance(value, list) else []
    return tuple(name[:_NAME_LENGTH] for name in names[:_NAMES_LIMIT] if isinstance(name, str))


def _union(groups: Iterable[tuple[str, ...]], otherwise: tuple[str, ...]) -> tuple[str, ...]:
    """Every name of any group, in order of appearance."""
    return tuple(dict.fromkeys(name for group in groups for name in group)) or otherwise


def _defined(names: Iterable[str], places: Mapping[str, Defined]) -> tuple[Defined, ...]:
    return tuple(places.get(name, Defined(name)) for name in names)
