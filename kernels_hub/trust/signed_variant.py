"""Verifies a variant on disk: by whom it is signed, for which place, and that every file is what was signed.

    bytes of metadata.json -> signatures over them -> the listing in them -> every file

in that order: nothing is parsed before the signature over it has been verified.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernels_hub.errors import IntegrityError, SignatureError
from kernels_hub.repository.metadata import METADATA_FILE, python_name
from kernels_hub.repository.variant_files import (
    BUNDLE_FILE,
    SIGNATURE_FILE,
    UNKNOWN,
    Listing,
    parse_listing,
    read_bounded,
    verify_files,
)
from kernels_hub.trust.keys import PublicKey
from kernels_hub.trust.policy import Signer
from kernels_hub.trust.signature import Signature, Statement, read_signatures
from kernels_hub.trust.sigstore_bundle import KNOWN_SIGNERS, SigstoreSigner, verify_bundle

Signed = tuple[Signer, Statement | None]
"""Who signed, and what they stated: nothing, in a Sigstore bundle."""


class UnsignedError(SignatureError):
    """No signature by any of the wanted keys; the message is a clause, for the caller to complete."""


@dataclass(frozen=True)
class Verified:
    """What is certain of a variant."""

    signers: tuple[Signer, ...]
    """Those who signed it, among the ones asked for."""
    repository: str | None
    """What it was signed for, where the signer said that."""
    release: str | None
    files: Mapping[str, str] = field(hash=False)
    """Path inside -> sha256 in hexadecimal; with metadata.json, without the signatures."""


def verify_signed(
    folder: Path,
    signers: Sequence[Signer] | None,
    repo_id: str | None = None,
    version: str | int | None = None,
) -> Verified:
    """Verify a variant's signature and every file.

    signers: one of them must have signed; None accepts every key, and the Sigstore signers that are
        known by name, which says that it is intact, not that it is to be trusted.
    repo_id: where it comes from, to refuse what was signed for another place; None does not check.
    version: "1.2.0" or 1, as the Hub's tag or branch says, for the same; None does not check.

    Raises UnsignedError (a SignatureError) without such a signature, SignatureError for one that does
    not verify or was made for another place, IntegrityError for files that are not as signed,
    MetadataError for a signed metadata.json that is malformed, and HubError when only Sigstore's
    servers could tell.
    """
    path = folder / METADATA_FILE
    metadata = read_bounded(path)
    if metadata is None:
        raise UnsignedError(f"{folder} has no {METADATA_FILE} that could be signed")
    found = _signed_by(folder, metadata, signers)
    listing = parse_listing(metadata, path)
    fitting = _check_binding(found, listing, repo_id, version, folder)
    if listing.algorithm is None:
        raise SignatureError(f"{path} is signed, but lists no digests: the signature covers no other file")
    statements = [statement for _, statement in fitting if statement is not None]
    return Verified(
        tuple(dict.fromkeys(signer for signer, _ in fitting)),
        next((statement.repository for statement in statements if statement.repository is not None), None),
        next(
            (statement.release for statement in statements if statement.release is not None), listing.release
        ),
        _verify_files(folder, listing, metadata),
    )


def verify_unsigned(folder: Path) -> Mapping[str, str]:
    """Verify every file of a variant against its own listing, where it has one; sha256 of each.

    Raises IntegrityError, and MetadataError for a metadata.json that is malformed.
    """
    path = folder / METADATA_FILE
    metadata = read_bounded(path)
    if metadata is None:
        return verify_files(folder, UNKNOWN)
    return _verify_files(folder, parse_listing(metadata, path), metadata)


def _verify_files(folder: Path, listing: Listing, metadata: bytes) -> dict[str, str]:
    files = verify_files(folder, listing)
    if files.get(METADATA_FILE) != hashlib.sha256(metadata).hexdigest():
        raise IntegrityError(
            f"{folder / METADATA_FILE} changed while it was verified. Its code was not imported"
        )
    return files


def _signed_by(folder: Path, metadata: bytes, signers: Sequence[Signer] | None) -> list[Signed]:
    """Which of the signers signed, and what they stated."""
    keys = None if signers is None else [signer for signer in signers if isinstance(signer, PublicKey)]
    workflows = [
        signer
        for signer in (KNOWN_SIGNERS.values() if signers is None else signers)
        if isinstance(signer, SigstoreSigner)
    ]
    found: list[Signed] = []
    missing: list[str] = []
    if keys is None or keys:
        signatures = read_signatures(folder, metadata)
        found += _by_keys(signatures, keys)
        by = ", ".join(signature.key.id for signature in signatures)
        missing.append(f"is signed by {by}" if by else f"has no {SIGNATURE_FILE}")
    if workflows and not found:
        if (bundle := read_bounded(folder / BUNDLE_FILE)) is None:
            missing.append(f"has no {BUNDLE_FILE}")
        else:
            found.append((verify_bundle(metadata, bundle, workflows, folder / BUNDLE_FILE), None))
    if not found:
        wanted = "" if signers is None else f" by {' or '.join(map(str, signers))}"
        raise UnsignedError(
            f"{folder} {' and '.join(missing)}: it lacks a signature{wanted}; "
            "its publisher makes one with kernels-hub publish --sign"
        )
    return found


def _by_keys(signatures: Sequence[Signature], keys: Sequence[PublicKey] | None) -> list[Signed]:
    if keys is None:
        return [(signature.key, signature.statement) for signature in signatures]
    known = {key: key for key in keys}  # with their comments, which a signature does not have
    return [(known[signature.key], signature.statement) for signature in signatures if signature.key in known]


# -- the place that it was signed for ---------------------------------------------------------------


def _check_binding(
    signed: Sequence[Signed],
    listing: Listing,
    repo_id: str | None,
    version: str | int | None,
    folder: Path,
) -> list[Signed]:
    """Those that were made for this place, of which there must be one; else SignatureError."""
    others = [
        _other_variant(statement, folder)
        or _other_repository(statement, listing, repo_id)
        or _other_version(statement, listing, version)
        for _, statement in signed
    ]
    if None not in others:
        raise SignatureError(
            f"{folder} has a good signature, but it was made for {others[0]}: somebody put signed files where "
            "they do not belong. Its code was not imported; ask the publisher, or sign it for this place"
        )
    return [one for one, other in zip(signed, others, strict=True) if other is None]


def _other_variant(statement: Statement | None, folder: Path) -> str | None:
    name = Path(os.path.abspath(folder)).name  # noqa: PTH100 (resolve() would follow links)
    if statement is None or statement.variant == name:
        return None
    return f"variant {statement.variant!r}, not {name!r}"


def _other_repository(statement: Statement | None, listing: Listing, repo_id: str | None) -> str | None:
    if repo_id is None:
        return None
    if statement is not None and statement.repository is not None:
        if statement.repository.casefold() != repo_id.casefold():
            return f"repository {statement.repository!r}, not {repo_id!r}"
    elif python_name(listing.name).casefold() != python_name(repo_id.rpartition("/")[2]).casefold():
        return f"a kernel named {listing.name!r}, not {repo_id!r}"
    return None


def _other_version(statement: Statement | None, listing: Listing, version: str | int | None) -> str | None:
    release = listing.release if statement is None else statement.release or listing.release
    signed = listing.version if release is None else _major(release)
    if version is None or (signed is None and statement is None):
        return None  # nothing to check, or a bundle of a kernel that says no version
    if release is not None and isinstance(version, str):
        same = _is_same_version(release, version)
    else:
        same = signed is not None and signed == _major(str(version))
    return None if same else f"version {release or listing.version}, not {version}"


def _is_same_version(one: str, other: str) -> bool:
    """However they are spelled: "1.2.0rc1" is "1.2.0-rc.1"."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


def _major(version: str) -> int | None:
    leading = re.match(r"\d+", version, re.ASCII)
    return None if leading is None else int(leading[0])
