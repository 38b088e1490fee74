"""Changes to the trust policy's file: read, change, check, replace. What its owner wrote in it stays."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kernels_hub.errors import TrustError
from kernels_hub.files import write_atomically
from kernels_hub.trust.keys import PublicKey
from kernels_hub.trust.policy import (
    SCHEMA,
    SWITCHES,
    Rule,
    Signer,
    TrustPolicy,
    check_pattern,
    normal_endpoint,
    parse_policy,
    policy_path,
)
from kernels_hub.trust.sigstore_bundle import KNOWN_SIGNERS

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

_T = TypeVar("_T")
_PATIENCE = 30.0
"""Seconds to wait for another process that changes the file."""
_HEADER = f"""\
# Which repositories' code may run here; `kernels-hub trust` edits it, and so may you.
schema = {SCHEMA}
"""


def add_rule(
    action: str, pattern: str, *, endpoint: str | None = None, signers: Sequence[Signer] = ()
) -> tuple[Rule, bool]:
    """Add a rule for a pattern over repositories; signers join those of the rule for the same pattern.

    signers: of a "signature" rule, each a key or a Sigstore signer that has a short name.

    Returns the rule, and whether the file changed: what is there already is not added again.

    Raises TrustError for a pattern or endpoint that is none, and for a file that is malformed.
    """
    try:
        check_pattern(pattern)
        endpoint = None if endpoint is None else normal_endpoint(endpoint)
    except ValueError as error:
        raise TrustError(str(error)) from error

    def change(document: TOMLDocument, policy: TrustPolicy) -> int:
        for rule in policy.rules:
            if (rule.action, rule.repositories, rule.endpoint) == (action, (pattern,), endpoint):
                _add_signers(document["rule"][rule.number - 1], rule, signers)
                return rule.number
        _append(document, action, pattern, endpoint, signers)
        return len(policy.rules) + 1

    number, policy, changed = _edit(change)
    return policy.rules[number - 1], changed


def remove_rule(number: int) -> Rule:
    """Remove a rule by its number. Raises TrustError where there is none."""

    def change(document: TOMLDocument, policy: TrustPolicy) -> Rule:
        if not 0 < number <= len(policy.rules):
            raise TrustError(
                f"{policy.path} has no rule {number}; it has {len(policy.rules)}: kernels-hub trust list"
            )
        _delete(document, number)
        return policy.rules[number - 1]

    return _edit(change)[0]


def remove_pattern(pattern: str) -> list[Rule]:
    """Remove a pattern from every rule that has it, and rules that have no other.

    Returns the rules as they were. Raises TrustError where no rule has it.
    """

    def change(document: TOMLDocument, policy: TrustPolicy) -> list[Rule]:
        found = [rule for rule in policy.rules if pattern in rule.repositories]
        if not found:
            raise TrustError(f"no rule of {policy.path} is for {pattern!r}; see: kernels-hub trust list")
        for rule in reversed(found):
            if set(rule.repositories) == {pattern}:
                _delete(document, rule.number)
            else:
                patterns = document["rule"][rule.number - 1][rule.action]
                while pattern in patterns:
                    patterns.remove(pattern)
        return found

    return _edit(change)[0]


def remove_signer(signer: Signer) -> list[Rule]:
    """Remove a key, or a Sigstore signer with a short name, from every rule. Returns them as they were.

    Raises TrustError where no rule has it, and where a rule has no other: without signers it would
    have to go, and its repositories would need no signature any more.
    """

    def change(document: TOMLDocument, policy: TrustPolicy) -> list[Rule]:
        found = [rule for rule in policy.rules if signer in rule.signers]
        if not found:
            raise TrustError(f"no rule of {policy.path} trusts {signer}; see: kernels-hub trust list")
        for rule in found:
            if rule.signers == (signer,):
                raise TrustError(
                    f"{signer} is the only signer of rule {rule.number} ({rule}); without the rule its repositories "
                    f"would need no signature. Deny them (kernels-hub trust deny '{rule.repositories[0]}'), add "
                    f"another key first, or remove the rule (kernels-hub trust remove {rule.number})"
                )
            _remove_signer(document["rule"][rule.number - 1], signer)
        return found

    return _edit(change)[0]


def set_switch(name: str, value: bool) -> bool:
    """Set `publisher`, `trust_remote_code` or `locked`; returns whether the file changed."""
    if name not in SWITCHES:
        raise TrustError(f"the trust policy has no switch {name!r}; it has {', '.join(SWITCHES)}")

    def change(document: TOMLDocument, policy: TrustPolicy) -> None:
        if getattr(policy, name) == value:
            return
        if name in document:
            document[name] = value
            return
        # Above the rules, where TOML has what belongs to no table.
        rules = document.pop("rule", None)
        document[name] = value
        if rules is not None:
            document["rule"] = rules

    return _edit(change)[2]


# -- in the document --------------------------------------------------------------------------------


def _append(
    document: TOMLDocument, action: str, pattern: str, endpoint: str | None, signers: Sequence[Signer]
) -> None:
    import tomlkit
    from tomlkit.items import AoT

    rules: Any = document.get("rule")
    if rules is None:
        rules = document["rule"] = tomlkit.aot()
    entry: Any = tomlkit.table() if isinstance(rules, AoT) else tomlkit.inline_table()
    entry[action] = pattern
    if endpoint is not None:
        entry["endpoint"] = endpoint
    _add_signers(entry, None, signers)
    rules.append(entry)


def _add_signers(entry: Any, rule: Rule | None, signers: Sequence[Signer]) -> None:
    for signer in signers:
        if rule is not None and signer in rule.signers:
            continue
        key, text = _written(signer)
        there = entry.get(key)
        if isinstance(there, list):
            there.append(text)
        else:
            # One Sigstore signer may stand there without a list around it.
            entry[key] = [text] if there is None else [there, text]


def _remove_signer(entry: Any, signer: Signer) -> None:
    if isinstance(signer, PublicKey):
        kept = [text for text in entry["keys"] if PublicKey.parse(text) != signer]
        for text in [text for text in entry["keys"] if text not in kept]:
            entry["keys"].remove(text)
    elif isinstance(entry["sigstore"], list):
        entry["sigstore"].remove(signer.name)
    else:
        del entry["sigstore"]


def _written(signer: Signer) -> tuple[str, str]:
    if isinstance(signer, PublicKey):
        return "keys", str(signer)
    if KNOWN_SIGNERS.get(signer.name) != signer:
        raise TrustError(
            f"{signer} has no short name; write its table into {policy_path()}: see docs/trust.md"
        )
    return "sigstore", signer.name


def _delete(document: TOMLDocument, number: int) -> None:
    rules: Any = document["rule"]
    del rules[number - 1]
    if not len(rules):
        del document["rule"]


# -- the file ---------------------------------------------------------------------------------------


def _edit(change: Callable[[TOMLDocument, TrustPolicy], _T]) -> tuple[_T, TrustPolicy, bool]:
    """Change the file under a lock, whole or not at all; its result, the new policy, whether it differs."""
    import tomlkit
    from filelock import FileLock

    path = policy_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock"), timeout=_PATIENCE):
            before = _content(path)
            document = tomlkit.parse(before.decode())
            result = change(document, parse_policy(before, path))
            after = tomlkit.dumps(document).encode()
            policy = parse_policy(after, path)
            changed = after != before
            if changed:
                _replace(path, after)
    except OSError as error:
        if isinstance(error, TrustError):
            raise
        raise TrustError(f"the trust policy {path} cannot be changed: {error}") from error
    return result, policy, changed


def _content(path: Path) -> bytes:
    """Of the file; where there is none, of a new one. parse_policy refuses what is no UTF-8 first."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return _HEADER.encode()
    parse_policy(content, path)
    return content


def _replace(path: Path, content: bytes) -> None:
    target = Path(os.path.realpath(path))  # a link to a file kept elsewhere stays one
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
    write_atomically(target, content, mode=mode, durable=True)


def parse_signer(text: str) -> Signer:
    """Who `trust add` and `verify --key` mean: a public key, a file with one, a key of one's own by name,
    or the short name of a Sigstore signer. Raises TrustError."""
    from kernels_hub.trust.keys import public_key

    if text in KNOWN_SIGNERS:
        return KNOWN_SIGNERS[text]
    if text.startswith("ed25519:"):
        return PublicKey.parse(text)
    path = Path(text).expanduser()
    if path.is_file() and path.suffix != ".pem":
        try:
            lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, ValueError) as error:
            raise TrustError(f"{path} is not a file with a public key: {error}") from error
        if len(lines) != 1:
            raise TrustError(f"{path}: expected one line, 'ed25519:<base64> comment', got {len(lines)}")
        return PublicKey.parse(lines[0])
    try:
        return public_key(text)
    except TrustError as error:
        known = ", ".join(KNOWN_SIGNERS)
        raise TrustError(
            f"{text!r} is no public key ('ed25519:…'), no file with one, no Sigstore signer ({known}), and no key "
            f"of yours: {error}"
        ) from error
