"""The text of a metadata.json.ed25519 as typed records."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from kernels_hub.parsing import Base64, RepositoryId, Struct

MOST = 64
"""Signatures in one file."""


class SignatureRow(Struct, frozen=True, forbid_unknown_fields=True):
    """One signature, and what its signer stated."""

    key: Annotated[str, Meta(max_length=200)]
    release: Annotated[str, Meta(max_length=200)] | None
    repository: RepositoryId | None
    signature: Base64
    variant: Annotated[str, Meta(min_length=1, max_length=255)]


class SignatureFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    signatures: Annotated[list[SignatureRow], Meta(min_length=1, max_length=MOST)]
    signed: Literal["metadata.json"]
    version: Literal[1]
