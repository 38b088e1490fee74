"""The content of a release: exactly which files, with which bytes.

build/<variant>/…   the variants, checked, with digests, and signatures where a key is given
README.md           the card, and beside it the pictures of the repository that it shows
kernel.toml         what it was built from, with the release's version
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import unquote

from packaging.version import InvalidVersion, Version

from kernels_hub.contained_paths import inside, relative_path_problem
from kernels_hub.errors import IntegrityError, MetadataError, PublishError
from kernels_hub.repository.build import build_repository
from kernels_hub.repository.card import CARD_FILE, CardInput, read_benchmarks, write_card
from kernels_hub.repository.check import check_kernels
from kernels_hub.repository.digest import list_files
from kernels_hub.repository.interface import Interface, built_variants, interface_of, read_kernels
from kernels_hub.repository.metadata import METADATA_FILE
from kernels_hub.repository.shared_objects import MANYLINUX
from kernels_hub.repository.source import MANIFEST_FILE, is_source_repository, read_source_repository
from kernels_hub.repository.variant_files import read_bounded
from kernels_hub.trust.signature import sign_variant

if TYPE_CHECKING:
    from kernels_hub.trust.keys import SigningKey

_REPO_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_IN_MEMORY = 1 << 20
_CHUNK = 1 << 20
_PICTURES = frozenset({".gif", ".jpeg", ".jpg", ".png", ".svg", ".webp"})
_SHOWN_PICTURE = re.compile(r"!\[[^\]]*\]\(\s*<?([^)\s>]+)")
_MOST_PICTURE_BYTES = 1 << 20
"""Of a picture that is published with its card; a larger one stays with its author."""


@dataclass(frozen=True)
class ReleaseFile:
    """One file, and the names of its content."""

    path: str
    """In the repository."""
    local: Path
    size: int
    sha256: str
    blob: str
    """Git's name for the content."""

    @classmethod
    def read(cls, path: str, local: Path) -> ReleaseFile:
        """Hash a file, in pieces."""
        size = local.stat().st_size
        sha256 = hashlib.sha256()
        blob = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
        with local.open("rb") as file:
            while chunk := file.read(_CHUNK):
                sha256.update(chunk)
                blob.update(chunk)
        return cls(path, local, size, sha256.hexdigest(), blob.hexdigest())

    def open(self, stack: ExitStack) -> BinaryIO:
        """Its content: small files from memory, so that many of them need no open file each."""
        if self.size <= _IN_MEMORY:
            return io.BytesIO(self.local.read_bytes())
        return stack.enter_context(self.local.open("rb"))


@dataclass(frozen=True)
class Release:
    """What is published, all of it."""

    repo_id: str
    repo_type: str
    version: Version
    files: Mapping[str, ReleaseFile] = field(hash=False)
    interface: Interface = field(hash=False)

    @property
    def tag(self) -> str:
        """Name of the release's tag."""
        return f"v{self.version}"

    @property
    def branch(self) -> str:
        """The branch that follows the newest release of its major."""
        return f"v{self.version.major}"

    @property
    def title(self) -> str:
        """Title of its commit, by which an unfinished release is known again."""
        return f"Release {self.version}"

    @property
    def pictures(self) -> frozenset[str]:
        """Paths of the pictures that its card shows."""
        return frozenset(filter(is_picture, self.files))


def is_picture(path: str) -> bool:
    """Whether a file of a release is a picture of its card, by its path."""
    return PurePosixPath(path).suffix.lower() in _PICTURES and not path.startswith("build/")


def parse_version(text: str) -> Version:
    """A release's version, spelled major.minor.patch. Raises PublishError for anything else."""
    try:
        version = Version(text)
    except InvalidVersion:
        version = None
    if version is None or len(version.release) != 3 or version.epoch or version.local:
        raise PublishError(
            f"{text!r} is no version of a release: it must read major.minor.patch, as in '1.2.0'"
        )
    return version


def check_repo_id(repo_id: str) -> str:
    """A repository's name. Raises PublishError unless it reads "org/name"."""
    if _REPO_ID.fullmatch(repo_id) is None or ".." in repo_id or "--" in repo_id:
        raise PublishError(f"{repo_id!r} is no repository to publish to: expected 'org/name'")
    return repo_id


@contextmanager
def prepare_release(
    path: Path,
    repo_id: str,
    version: str | None = None,
    *,
    repo_type: str = "kernel",
    key: SigningKey | None = None,
    manylinux: tuple[int, int] = MANYLINUX,
) -> Iterator[Release]:
    """Build (or take), check and sign a repository; the files live as long as the context.

    path: a repository in source form, or one whose `build/` holds the variants. Nothing is written there.
    version: of the release; None takes the one of kernel.toml or metadata.json.

    Raises BuildError with every problem of its code, MetadataError for files that do not parse,
    PublishError for a bad repo_id or version, or a build of another release.
    """
    check_repo_id(repo_id)
    wanted = None if version is None else parse_version(version)
    with TemporaryDirectory(prefix="kernels-hub-release-") as scratch:
        folder = Path(scratch)
        if _can_be_built(path):
            source = read_source_repository(path)
            wanted = wanted or parse_version(source.version)
            build_repository(path, folder, version=str(wanted), check=True, manylinux=manylinux)
        else:
            wanted = _take_build(path, folder, wanted, manylinux)
        _write_manifest(path, folder, wanted)
        if key is not None:
            for name in built_variants(folder):
                sign_variant(folder / "build" / name, key, repo_id=repo_id, release=str(wanted))
        interface = interface_of(read_kernels(folder))
        _write_card(path, folder, interface, repo_id, repo_type, wanted)
        files = {name: ReleaseFile.read(name, file) for name, file in list_files(folder).items()}
        yield Release(repo_id, repo_type, wanted, files, interface)


def leave_signatures(path: Path, release: Release, key: SigningKey) -> tuple[list[Path], list[Path]]:
    """Sign the variants that lie in a published repository's own folder, where they are what was published.

    Returns the signature files, and the variants that were left unsigned as they are of another build.
    """
    signed: list[Path] = []
    others: list[Path] = []
    for folder in _variants_beside(path):
        published = release.files.get(f"build/{folder.name}/{METADATA_FILE}")
        metadata = read_bounded(folder / METADATA_FILE)
        if published is None or metadata is None or hashlib.sha256(metadata).hexdigest() != published.sha256:
            others.append(folder)
            continue
        signed.append(sign_variant(folder, key, repo_id=release.repo_id, release=str(release.version)))
    return signed, others


def _variants_beside(path: Path) -> list[Path]:
    """The built variants at a path that is published: a repository, its `build/`, or one variant."""
    if (path / METADATA_FILE).is_file():
        return [path]
    builds = path / "build" if (path / "build").is_dir() else path
    return sorted(child for child in builds.iterdir() if (child / METADATA_FILE).is_file())


def _can_be_built(path: Path) -> bool:
    """Whether there are sources: a published repository has a kernel.toml too, but not its folders."""
    if not is_source_repository(path):
        return False
    try:
        document = tomllib.loads((path / MANIFEST_FILE).read_text(encoding="utf-8"))
        tables = document.get("backends", {}).values()
        folders = [folder for table in tables for folder in table.get("sources", ())]
    except (ValueError, AttributeError, TypeError):
        return True  # reading it as a source says what is wrong
    return not (path / "build").is_dir() or any((path / str(folder)).is_dir() for folder in folders)


def _take_build(path: Path, folder: Path, wanted: Version | None, manylinux: tuple[int, int]) -> Version:
    kernels = read_kernels(path)
    check_kernels(kernels, manylinux=manylinux)
    for kernel in kernels:
        release = kernel.metadata.release if kernel.metadata is not None else None
        if release is None:
            raise PublishError(
                f"variant {kernel.variant} of {path} says no release in its {METADATA_FILE}; "
                "publish from the source form, or build it with kernels-hub build"
            )
        if wanted is not None and parse_version(release) != wanted:
            raise PublishError(
                f"variant {kernel.variant} of {path} was built as {release}, not {wanted}; "
                f"build it again as {wanted}, or publish {release}"
            )
        wanted = parse_version(release)
        target = folder / "build" / kernel.variant
        for name, file in kernel.files.items():
            place = inside(target, name)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
    assert wanted is not None  # there is at least one variant
    return wanted


def _write_manifest(path: Path, folder: Path, version: Version) -> None:
    manifest = path / MANIFEST_FILE
    if not manifest.is_file():
        return
    import tomlkit

    try:
        document: Any = tomlkit.parse(manifest.read_text(encoding="utf-8"))
        document["kernel"]["version"] = str(version)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MetadataError(
            f"{manifest} is no manifest with a table [kernel]: {error}; correct it"
        ) from error
    (folder / MANIFEST_FILE).write_text(tomlkit.dumps(document), encoding="utf-8", newline="\n")


def _write_card(
    path: Path, folder: Path, interface: Interface, repo_id: str, repo_type: str, version: Version
) -> None:
    root = path if path.is_dir() else path.parent
    readme = root / CARD_FILE
    given = CardInput(
        repo_id,
        str(version),
        repo_type,
        dtypes=_dtypes(folder / MANIFEST_FILE),
        # The card of a repository that was downloaded is generated: it must not be wrapped into itself.
        readme=readme.read_text(encoding="utf-8") if readme.is_file() and _can_be_built(path) else "",
        benchmarks=read_benchmarks(root),
    )
    card = write_card(replace(interface, version=str(version)), given)
    (folder / CARD_FILE).write_text(card, encoding="utf-8", newline="\n")
    _copy_pictures(card, root, folder)


def _copy_pictures(card: str, root: Path, folder: Path) -> None:
    """Copy what a card shows of its repository's own pictures: small files that no link leads to."""
    for address in dict.fromkeys(_SHOWN_PICTURE.findall(card)):
        path = unquote(address.partition("#")[0].partition("?")[0]).removeprefix("./")
        if not is_picture(path) or relative_path_problem(path) is not None:
            continue
        try:
            picture = inside(root, path)
        except IntegrityError:  # a link
            continue
        if picture.is_file() and picture.stat().st_size <= _MOST_PICTURE_BYTES:
            copy = inside(folder, path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(picture, copy)


def _dtypes(manifest: Path) -> tuple[str, ...]:
    if not manifest.is_file():
        return ()
    kernel = tomllib.loads(manifest.read_text(encoding="utf-8"))["kernel"]
    dtypes = kernel.get("dtypes", ()) if isinstance(kernel, dict) else ()
    return tuple(map(str, dtypes)) if isinstance(dtypes, list) else ()
