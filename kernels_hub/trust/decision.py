"""Decides whether a repository's code may run: applies the trust policy before a download and after it.

    candidate -> admit (before anything is fetched) -> Admission -> check_signature (before any import)

The order of precedence, whatever the order of the rules in the policy:

    1. a `deny` rule refuses;
    2. a `signature` rule admits what one of its keys has signed, and nothing else;
    3. an `allow` rule admits;
    4. a pinned kernels.lock admits, unless the policy says `locked = false`;
    5. `trust_remote_code` in the call admits, unless the policy says `trust_remote_code = false`;
    6. the Hub's flag for trusted publishers admits, where the policy says `publisher = true` or has a
       `publisher` rule for the repository;
    7. everything else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernels_hub.errors import SignatureError, TrustError
from kernels_hub.trust.policy import Rule, Signer, TrustPolicy, load_policy, without_credentials
from kernels_hub.trust.signed_variant import UnsignedError, verify_signed, verify_unsigned

_REPOSITORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)?", re.ASCII)


@dataclass(frozen=True)
class RemoteCode:
    """A repository whose code is about to be fetched and run."""

    repo_id: str
    repo_type: str
    """ "kernel" or "model"."""
    commit: str
    endpoint: str
    trust_remote_code: bool | tuple[str, ...] = False
    """As in Hugging Face's kernels: True, or the names of repositories."""
    locked: bool = False
    """The commit and every file's sha256 come from a kernels.lock."""
    version: str | int | None = None
    """What the commit was resolved from: "1.2.0" of tag v1.2.0, 1 of branch v1; None for other revisions."""


@dataclass(frozen=True)
class Admission:
    """Why a candidate may be fetched, and what must hold before it runs."""

    rule: str
    """For reports and logs."""
    signature_keys: tuple[Signer, ...] = ()
    """One of these must have signed the variant; () where no signature is needed."""


@dataclass(frozen=True)
class Preview:
    """What is known of a verdict without the network."""

    verdict: str
    """ "admitted", "refused", or "publisher": the Hub's flag will decide."""
    reason: str
    signature_keys: tuple[Signer, ...] = ()


def admit(candidate: RemoteCode, is_trusted_publisher: Callable[[str], bool]) -> Admission:
    """The policy's verdict on a repository, before anything of it is downloaded.

    is_trusted_publisher: asks the Hub about an organisation; only called where nothing else decides.
        The HubError that it may raise passes through.

    Raises TrustError with the rule that refused and how to allow the repository.
    """
    policy = load_policy()
    decided = _decide(candidate, policy)
    if decided is not None:
        return decided
    rule = _publisher_rule(candidate, policy)
    if rule is not None and is_trusted_publisher(_organisation(candidate)):
        return Admission(rule)
    raise TrustError(_nothing_admits(candidate, policy, rule is not None))


def preview(candidate: RemoteCode) -> Preview:
    """What `admit` would say, without asking the Hub. Raises TrustError for a policy that cannot be read."""
    policy = load_policy()
    try:
        decided = _decide(candidate, policy)
    except TrustError as error:
        return Preview("refused", str(error))
    if decided is not None:
        return Preview("admitted", decided.rule, decided.signature_keys)
    if (rule := _publisher_rule(candidate, policy)) is not None:
        return Preview("publisher", rule)
    return Preview("refused", _nothing_admits(candidate, policy, False))


def admit_bundle(candidate: RemoteCode) -> Admission:
    """The policy's verdict on a repository that an archive brings, before anything of it is unpacked.

    As `admit`, but the Hub's flag for trusted publishers does not count: whoever made the archive chose its names.

    Raises TrustError with the rule that refused and how to allow the repository.
    """
    policy = load_policy()
    if (decided := _decide(candidate, policy)) is not None:
        return decided
    raise TrustError(
        f"{candidate.repo_type} {candidate.repo_id!r} in a bundle is not trusted: no rule of "
        f"{_policy_named(policy)} names it, and the Hub's flag for publishers vouches for no archive. Nothing was "
        f"unpacked. If you trust whoever made it: kernels-hub trust add KEY --for {candidate.repo_id}, "
        f"kernels-hub trust allow {candidate.repo_id}"
        + (", a kernels.lock that pins it (--lock)" if policy.locked else "")
        + (", or --trust-remote-code" if policy.trust_remote_code else "")
    )


def check_signature(admission: Admission, candidate: RemoteCode, variant_folder: Path) -> dict[str, str]:
    """Verify a downloaded variant before anything of it is imported or parsed.

    Where the admission asks for a signature: that one of its keys signed exactly the bytes of
    metadata.json, for this repository and version. Then, signed or not, that the files of the folder
    are exactly those that metadata.json lists, where it lists any.

    Returns sha256, in hexadecimal, of each file by its path inside, metadata.json included: what the
    loader may check again at the import.

    Raises SignatureError, IntegrityError, MetadataError for a metadata.json that is malformed, and
    HubError when only Sigstore's servers could tell.
    """
    if not admission.signature_keys:
        return dict(verify_unsigned(variant_folder))
    try:
        verified = verify_signed(
            variant_folder, admission.signature_keys, candidate.repo_id, candidate.version
        )
    except UnsignedError as error:
        raise SignatureError(
            f"{_named(candidate)} is not trusted: {error}, which {admission.rule} asks for. Its code was not "
            f"imported. If another key is to be trusted: kernels-hub trust add KEY --for {candidate.repo_id}"
        ) from error
    return dict(verified.files)


# -- before the download ----------------------------------------------------------------------------


def _decide(candidate: RemoteCode, policy: TrustPolicy) -> Admission | None:
    """By everything but the publisher's flag; None where that is left."""
    if _REPOSITORY.fullmatch(candidate.repo_id) is None:
        raise TrustError(f"{_named(candidate)} is not trusted: its name is not of the form 'org/name'")
    if denied := _matching("deny", candidate, policy):
        raise TrustError(
            f"{_named(candidate)} is not trusted: {policy.cite(denied[0])} denies it, which no other rule and no "
            f"argument overrides; to allow it, remove that rule: kernels-hub trust remove {denied[0].number}"
        )
    if required := _matching("signature", candidate, policy):
        signers = tuple(dict.fromkeys(signer for rule in required for signer in rule.signers))
        return Admission(", ".join(map(policy.cite, required)), signers)
    if allowed := _matching("allow", candidate, policy):
        return Admission(policy.cite(allowed[0]))
    if candidate.locked and policy.locked:
        return Admission("locked: kernels.lock pins its commit and every file")
    if policy.trust_remote_code and _vouched_for(candidate):
        return Admission("trust_remote_code in the call")
    return None


def _matching(action: str, candidate: RemoteCode, policy: TrustPolicy) -> list[Rule]:
    return policy.matching(action, candidate.repo_id, candidate.endpoint)


def _vouched_for(candidate: RemoteCode) -> bool:
    vouched = candidate.trust_remote_code
    if isinstance(vouched, bool):
        return vouched
    return candidate.repo_id in ((vouched,) if isinstance(vouched, str) else vouched)


def _publisher_rule(candidate: RemoteCode, policy: TrustPolicy) -> str | None:
    """The rule under which the publisher's flag admits; None where it does not count."""
    if not _organisation(candidate):
        return None
    if rules := _matching("publisher", candidate, policy):
        rule = policy.cite(rules[0])
    elif policy.publisher:
        rule = "publisher = true"
    else:
        return None
    return f"{rule}: the flag of publisher {_organisation(candidate)!r} on {without_credentials(candidate.endpoint)}"


def _organisation(candidate: RemoteCode) -> str:
    organisation, slash, _ = candidate.repo_id.partition("/")
    return organisation if slash else ""


def _nothing_admits(candidate: RemoteCode, policy: TrustPolicy, asked: bool) -> str:
    source = _policy_named(policy)
    if asked:
        publisher = f"{_organisation(candidate)!r} is not a trusted publisher there"
    elif not _organisation(candidate):
        publisher = "it belongs to no organisation that could be a trusted publisher"
    else:
        publisher = "publisher = false"
    reasons = [
        "no allow rule names it",
        publisher,
        _switch(policy.locked, candidate.locked, "no kernels.lock pins it", "locked = false"),
        _switch(
            policy.trust_remote_code,
            candidate.trust_remote_code is not False,
            "trust_remote_code does not name it"
            if candidate.trust_remote_code
            else "trust_remote_code is not set",
            "trust_remote_code = false",
        ),
    ]
    ways = [
        f"kernels-hub trust allow {candidate.repo_id}",
        f"kernels-hub trust add KEY --for {candidate.repo_id}",
    ]
    if policy.trust_remote_code:
        ways.append(f"trust_remote_code=[{candidate.repo_id!r}] in the call")
    if policy.locked:
        ways.append("kernels-hub lock, and load what it pins")
    return (
        f"{_named(candidate)} is not trusted by {source}: {', '.join(reasons)}. Nothing of it was run. "
        f"If you trust its code, allow it by one of: {'; '.join(ways)}"
    )


def _policy_named(policy: TrustPolicy) -> str:
    return str(policy.path) if policy.exists else f"the default policy (there is no {policy.path})"


def _switch(enabled: bool, given: bool, absent: str, disabled: str) -> str:
    if enabled:
        return absent
    return f"{disabled} (it was given in vain)" if given else disabled


def _named(candidate: RemoteCode) -> str:
    return f"{candidate.repo_type} {candidate.repo_id!r} on {without_credentials(candidate.endpoint)}"
