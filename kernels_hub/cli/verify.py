"""`kernels-hub verify PATH`: are the variants of a repository on disk signed, and intact? Imports none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels_hub.cli.output import AsJson, print_columns, print_json

if TYPE_CHECKING:
    from kernels_hub.trust.policy import Signer


@dataclass(frozen=True)
class _VerifiedVariant:
    variant: str
    signers: tuple[str, ...] = ()
    repository: str | None = None
    release: str | None = None
    files: int = 0
    problem: str | None = None


def verify(
    path: Annotated[Path, typer.Argument(help="A built repository, its build/ folder, or one variant.")],
    key: Annotated[
        list[str] | None,
        typer.Option(help="A key that must have signed, as in `trust add`; one of them, if several."),
    ] = None,
    repo: Annotated[
        str | None,
        typer.Option(help="The repository that it must be signed for; its keys in the trust policy, too."),
    ] = None,
    endpoint: Annotated[str | None, typer.Option(help="The Hub of that repository.")] = None,
    as_json: AsJson = False,
) -> None:
    """Verify signatures and files of a repository on disk.

    The exit status is 1 unless every variant holds.
    Without --key or --repo every key will do: that says that nothing was altered since it was signed,
    not that whoever signed it is to be trusted.
    """
    signers = _wanted(key or [], repo, endpoint)
    rows = [_verify(folder, signers, repo) for folder in _variants(path)]
    failed = any(row.problem for row in rows)
    if as_json:
        print_json(
            {
                "path": str(path),
                "verified": not failed,
                "variants": [
                    {
                        "variant": row.variant,
                        "verified": row.problem is None,
                        "signers": list(row.signers),
                        "repository": row.repository,
                        "release": row.release,
                        "files": row.files,
                        "problem": row.problem,
                    }
                    for row in rows
                ],
            }
        )
    else:
        print_columns((row.variant, *_shown(row)) for row in rows)
    if failed:
        raise typer.Exit(1)


def _shown(row: _VerifiedVariant) -> tuple[str, str]:
    if row.problem is not None:
        return "REFUSED", row.problem
    place = " ".join(part for part in (row.repository, row.release) if part)
    return "verified", f"{row.files} files, signed by {', '.join(row.signers)}" + (
        f" for {place}" if place else ""
    )


def _wanted(keys: Sequence[str], repo: str | None, endpoint: str | None) -> tuple[Signer, ...] | None:
    """Those of whom one must have signed; None for anybody."""
    from kernels_hub.errors import TrustError
    from kernels_hub.trust.policy_edit import parse_signer

    if keys:
        return tuple(map(parse_signer, keys))
    if repo is None:
        return None
    import os

    from kernels_hub.trust.decision import RemoteCode, preview

    hub = endpoint or os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    verdict = preview(RemoteCode(repo, "kernel", "", hub))
    if verdict.verdict == "refused":
        raise TrustError(verdict.reason)
    return verdict.signature_keys or None


def _variants(path: Path) -> list[Path]:
    from kernels_hub.errors import RepositoryNotFoundError
    from kernels_hub.repository.metadata import METADATA_FILE

    if (path / METADATA_FILE).is_file():
        return [path]
    builds = path / "build" if (path / "build").is_dir() else path
    variants: list[Path] = []
    if builds.is_dir():
        variants = sorted(
            child for child in builds.iterdir() if child.is_dir() and not child.name.startswith(".")
        )
    if not variants or not (
        builds is not path or any((child / METADATA_FILE).is_file() for child in variants)
    ):
        raise RepositoryNotFoundError(
            f"no variants at {path}: expected a built repository with build/<variant>/{METADATA_FILE}, "
            "or one variant; kernels-hub build makes them"
        )
    return variants


def _verify(folder: Path, signers: tuple[Signer, ...] | None, repo: str | None) -> _VerifiedVariant:
    from kernels_hub.errors import MetadataError, SignatureError
    from kernels_hub.trust.signed_variant import verify_signed

    name = folder.absolute().name
    try:
        verified = verify_signed(folder, signers, repo)
    except (SignatureError, MetadataError) as error:
        return _VerifiedVariant(name, problem=str(error))
    return _VerifiedVariant(
        name,
        tuple(map(str, verified.signers)),
        verified.repository,
        verified.release,
        len(verified.files),
    )
