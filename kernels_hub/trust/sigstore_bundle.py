"""Sigstore bundles: `metadata.json.sigstore`, how Hugging Face signs its community's kernels.

A bundle says: a workflow of that GitHub repository signed these bytes, and a public log has it. Needs
the `sigstore` package (`pip install kernels-hub[sigstore]`), imported when a policy asks for it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernels_hub.errors import HubError, SignatureError

if TYPE_CHECKING:
    from sigstore.models import Bundle
    from sigstore.verify import Verifier
    from sigstore.verify.policy import VerificationPolicy

SIGSTORE_ROOT = "KERNELS_HUB_SIGSTORE_ROOT"
"""Environment variable: path of a trusted_root.json, of a Sigstore of one's own or for an air-gapped place.

Nothing is fetched then.
"""

_ISSUER = "https://token.actions.githubusercontent.com"


@dataclass(frozen=True)
class SigstoreSigner:
    """Workflows of one GitHub repository."""

    repository: str
    """On GitHub: "org/name"."""
    workflows: tuple[str, ...]
    """`<file>@<ref>` below .github/workflows, such as "build.yaml@refs/heads/main"."""
    name: str = ""
    """Short name, where it has one."""

    def __str__(self) -> str:
        return self.name or f"sigstore:{self.repository}"

    @property
    def signer_uris(self) -> tuple[str, ...]:
        """As they stand in a certificate."""
        base = f"https://github.com/{self.repository}/.github/workflows"
        return tuple(f"{base}/{workflow}" for workflow in self.workflows)


KNOWN_SIGNERS = {
    "kernels-community": SigstoreSigner(
        "huggingface/kernels-community",
        (
            "build.yaml@refs/heads/main",
            "build-mac.yaml@refs/heads/main",
            "build-windows.yaml@refs/heads/main",
            "sign-old-builds.yaml@refs/heads/main",
        ),
        "kernels-community",
    )
}
"""Short name -> signer. Source: kernels 0.17.2, `kernels.verify.DEFAULT_POLICIES`."""


def verify_bundle(
    metadata: bytes, bundle: bytes, signers: Sequence[SigstoreSigner], where: Path
) -> SigstoreSigner:
    """Verify that a workflow of one of the signers signed exactly these bytes of a metadata.json.

    bundle: the content of `where`, a metadata.json.sigstore.

    Verified against Sigstore's root of trust as this machine has it; where that does not do, against
    the one that Sigstore publishes now.

    Raises SignatureError when it does not hold or the `sigstore` package is missing; HubError when
    only Sigstore's servers could tell, and they cannot be reached.
    """
    try:
        from sigstore.models import Bundle
    except ImportError as error:
        raise SignatureError(
            f"{where} is a Sigstore bundle, and the trust policy asks to verify it, which needs the package "
            "sigstore: pip install kernels-hub[sigstore]"
        ) from error
    with _hostile(where):
        parsed = Bundle.from_json(bundle)
        signer = _signer(parsed, signers, where)
        _check_signature(metadata, parsed, where)
    policy = _policy(signer)
    if own_root := os.environ.get(SIGSTORE_ROOT):
        if (problem := _problem(lambda: _own_verifier(own_root), metadata, parsed, policy)) is not None:
            raise SignatureError(f"{where} does not verify against the root of trust {own_root}: {problem}")
        return signer
    if (problem := _problem(lambda: _verifier(offline=True), metadata, parsed, policy)) is None:
        return signer
    # The log or the authority may have new keys since.
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise HubError(
            f"{where} does not verify against Sigstore's root of trust as it is known here ({problem}), and "
            "HF_HUB_OFFLINE forbids to ask for a newer one"
        )
    try:
        newest = _problem(lambda: _verifier(offline=False), metadata, parsed, policy)
    except HubError as error:
        raise HubError(f"{where} does not verify with what is known here ({problem}). {error}") from error
    if newest is not None:
        raise SignatureError(f"{where} does not verify: {newest}")
    return signer


# -- what needs no root of trust: refused first, so that it never looks like network trouble --------


def _policy(signer: SigstoreSigner) -> VerificationPolicy:
    from sigstore.verify import policy

    return policy.AllOf(
        [
            policy.OIDCIssuer(_ISSUER),
            policy.OIDCIssuerV2(_ISSUER),
            policy.OIDCSourceRepositoryURI(f"https://github.com/{signer.repository}"),
            policy.AnyOf([policy.OIDCBuildSignerURI(uri) for uri in signer.signer_uris]),
        ]
    )


def _signer(bundle: Bundle, signers: Sequence[SigstoreSigner], where: Path) -> SigstoreSigner:
    """The signer whose workflow the certificate names."""
    from sigstore.errors import VerificationError

    for signer in signers:
        with suppress(VerificationError):
            _policy(signer).verify(bundle.signing_certificate)
            return signer
    raise SignatureError(
        f"{where} is signed by another workflow than those trusted ({', '.join(map(str, signers))})"
    )


def _check_signature(metadata: bytes, bundle: Bundle, where: Path) -> None:
    import base64

    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256

    key = bundle.signing_certificate.public_key()
    signature = json.loads(bundle.to_json()).get("messageSignature", {}).get("signature", "")
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise SignatureError(f"{where}: expected a signature on an elliptic curve")
    try:
        key.verify(base64.b64decode(signature), metadata, ec.ECDSA(SHA256()))
    except (InvalidSignature, ValueError) as error:
        raise SignatureError(
            f"{where} does not fit metadata.json: one of the two was altered, or they are of different builds"
        ) from error


@contextmanager
def _hostile(where: Path) -> Iterator[None]:
    """The parsers of bundles and certificates raise whatever they stumble over; all of it is a refusal."""
    try:
        yield
    except SignatureError:
        raise
    except Exception as error:
        problem = (str(error).splitlines() or [type(error).__name__])[0]
        raise SignatureError(f"{where} is not a Sigstore bundle: {problem}") from error


# -- roots of trust ---------------------------------------------------------------------------------


def _problem(
    make: Callable[[], Verifier], metadata: bytes, bundle: Bundle, policy: VerificationPolicy
) -> str | None:
    """Why a bundle does not verify; None where it does. Raises HubError without a root of trust."""
    from sigstore.errors import Error, VerificationError

    try:
        with _quiet():
            verifier = make()
    except (Error, OSError, ValueError) as error:
        raise HubError(
            f"Sigstore's root of trust cannot be had, so its bundles can be neither accepted nor refused: "
            f"{error}; try again, or set {SIGSTORE_ROOT} to a trusted_root.json"
        ) from error
    try:
        verifier.verify_artifact(metadata, bundle, policy)
    except VerificationError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 (as in _hostile)
        return f"{type(error).__name__}: {error}"
    return None


def _own_verifier(path: str) -> Verifier:
    from sigstore.models import TrustedRoot
    from sigstore.verify import Verifier

    return Verifier(trusted_root=TrustedRoot.from_file(path))


def _verifier(offline: bool) -> Verifier:
    from sigstore.verify import Verifier

    return Verifier.production(offline=offline)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warning that working offline is: here it is what is wanted."""
    logger = logging.getLogger("sigstore._internal.tuf")
    logger.addFilter(_drop)
    try:
        yield
    finally:
        logger.removeFilter(_drop)


def _drop(record: logging.LogRecord) -> bool:
    return record.levelno > logging.WARNING
