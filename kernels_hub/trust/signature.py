r"""Signatures over a variant: `metadata.json.ed25519` beside its metadata.json.

What a signature covers, in this order and nothing else:

    b"kernels_hub variant signature v1\0"
    length of the statement, 4 bytes, most significant first
    the statement: {"release":…,"repository":…,"signed":"metadata.json","variant":…} as JSON
    the bytes of metadata.json, which lists a digest of every other file

The statement binds the signature to a variant's folder name, and to the repository and the release
that the signer named, so that a signed variant says nothing elsewhere. docs/trust.md has the rest.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels_hub.errors import IntegrityError, MetadataError, SignatureError, TrustError
from kernels_hub.files import write_atomically
from kernels_hub.repository.metadata import METADATA_FILE
from kernels_hub.repository.variant_files import (
    SIGNATURE_FILE,
    check_portable,
    parse_listing,
    read_bounded,
    verify_files,
)
from kernels_hub.trust.keys import PublicKey, SigningKey

_FORMAT = 1
_DOMAIN = b"kernels_hub variant signature v1\0"
_MAX_FILE = 256 * 1024


@dataclass(frozen=True)
class Statement:
    """What a signer said that is not in metadata.json."""

    variant: str
    """Name of the variant's folder."""
    repository: str | None = None
    """The repository that it was signed for; None leaves that to the kernel's name."""
    release: str | None = None
    """The full version."""

    def encode(self) -> bytes:
        """The bytes that are signed."""
        return _compact({**self._fields(), "signed": METADATA_FILE})

    def _fields(self) -> dict[str, str | None]:
        return {"release": self.release, "repository": self.repository, "variant": self.variant}


@dataclass(frozen=True)
class Signature:
    """One signature of a file of them."""

    key: PublicKey
    statement: Statement
    value: bytes

    def is_valid(self, metadata: bytes) -> bool:
        """Whether its own key made it, over exactly this metadata.json."""
        return self.key.verifies(self.value, signed_bytes(self.statement, metadata))


def signed_bytes(statement: Statement, metadata: bytes) -> bytes:
    """The message of a signature."""
    head = statement.encode()
    return _DOMAIN + len(head).to_bytes(4, "big") + head + metadata


def sign_variant(
    folder: Path, key: SigningKey, *, repo_id: str | None = None, release: str | None = None
) -> Path:
    """Sign a built variant, and return the path of its `metadata.json.ed25519`.

    folder: its name is signed too, so it must be the one that is published, `…/build/torch-cpu`.
    repo_id: binds the signature to one repository; without it the kernel's name has to be the
        repository's wherever it is loaded from.
    release: the full version; None takes the one in metadata.json. They must agree.

    The same content and key give the same bytes. Signatures by other keys, or for other
    repositories, over the same metadata.json stay; those over another one, which verify nothing any
    more, are dropped.

    Raises MetadataError when metadata.json is missing, lists no digests, or contradicts `release`;
    IntegrityError when a file is not as listed; SignatureError for a signature file that is none.
    """
    path = folder / METADATA_FILE
    metadata = read_bounded(path)
    if metadata is None:
        raise MetadataError(f"no {METADATA_FILE} in {folder}: build the repository before you sign it")
    listing = parse_listing(metadata, path)
    if listing.algorithm is None:
        raise MetadataError(
            f"{path} lists no digests of its files, so a signature would cover none; build it again"
        )
    check_portable(listing, path)
    verify_files(folder, listing)
    if release is not None and listing.release not in (None, release):
        raise MetadataError(
            f"{path} is of release {listing.release}, not {release}; build that, or sign this"
        )
    statement = Statement(Path(os.path.abspath(folder)).name, repo_id, release or listing.release)  # noqa: PTH100
    own = Signature(key.public, statement, key.sign(signed_bytes(statement, metadata)))
    others = [
        other
        for other in _read(folder / SIGNATURE_FILE)
        if (other.key, other.statement.repository) != (key.public, repo_id) and other.is_valid(metadata)
    ]
    target = folder / SIGNATURE_FILE
    content = _encode(
        sorted([own, *others], key=lambda other: (other.key.id, other.statement.repository or ""))
    )
    write_atomically(target, content, beside=folder.parent)  # a variant holds nothing that is not listed
    return target


def read_signatures(folder: Path, metadata: bytes) -> tuple[Signature, ...]:
    """The signatures of a variant over these bytes of its metadata.json; () where there are none.

    Every one is verified with the key that it names: whether to trust that key is another question.

    Raises SignatureError for a file that is malformed, or has a signature that does not verify.
    """
    path = folder / SIGNATURE_FILE
    signatures = _read(path)
    for signature in signatures:
        if not signature.is_valid(metadata):
            raise SignatureError(
                f"{path}: the signature by {signature.key} does not fit {METADATA_FILE}: one of the two was "
                "altered, or they are of different builds. Its code was not imported; fetch it again, or sign it again"
            )
    return signatures


# -- the file ---------------------------------------------------------------------------------------


def _read(path: Path) -> tuple[Signature, ...]:
    try:
        content = read_bounded(path, _MAX_FILE)
    except IntegrityError as error:
        raise SignatureError(str(error)) from error
    if content is None:
        return ()
    try:
        signatures = _decode(content, path)
        canonical = _encode(signatures)
    except (ValueError, TrustError) as error:
        raise SignatureError(f"{path} is not a file of signatures: {error}") from error
    if canonical != content:
        # One spelling only: no byte of the file can change without being noticed.
        raise SignatureError(f"{path} is not spelled as kernels-hub writes it: it was altered. Sign it again")
    return signatures


def _decode(content: bytes, path: Path) -> tuple[Signature, ...]:
    from kernels_hub.parsing import parse_json
    from kernels_hub.trust.signature_file import SignatureFile

    where = f"{path} is not a file of signatures"
    document = parse_json(content, SignatureFile, where=where, error=SignatureError, unique_keys=True)
    return tuple(
        Signature(
            PublicKey.parse(entry.key),
            Statement(entry.variant, entry.repository, entry.release),
            base64.b64decode(entry.signature, validate=True),
        )
        for entry in document.signatures
    )


def _encode(signatures: list[Signature] | tuple[Signature, ...]) -> bytes:
    entries = [
        {
            # Without the comment: nothing in the file is outside of what is verified.
            "key": signature.key.id,
            "release": signature.statement.release,
            "repository": signature.statement.repository,
            "signature": base64.b64encode(signature.value).decode(),
            "variant": signature.statement.variant,
        }
        for signature in signatures
    ]
    document = {"signatures": entries, "signed": METADATA_FILE, "version": _FORMAT}
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def _compact(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
