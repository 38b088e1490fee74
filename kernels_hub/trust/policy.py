"""The trust policy: which repositories' code may run here, as TOML that its owner edits.

    schema = 1
    publisher = true                     # the Hub's flag for trusted publishers admits
    trust_remote_code = true             # callers may pass trust_remote_code
    locked = true                        # what a kernels.lock pins is admitted

    [[rule]]
    allow = "my-org/*"

    [[rule]]
    signature = ["other-org/*"]          # one of these keys must have signed
    keys = ["ed25519:… alice"]
    sigstore = ["kernels-community", {repository = "org/name", workflows = ["build.yaml@refs/heads/main"]}]

    [[rule]]
    publisher = "*"                      # the flag, but of this Hub only
    endpoint = "https://hub.example.org"

    [[rule]]
    deny = "evil/*"

`KERNELS_HUB_TRUST` names the file; else it is `trust.toml` in the configuration folder, and where
there is none the switches above are the policy. A file that cannot be read admits nothing.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from kernels_hub.errors import TrustError
from kernels_hub.trust.keys import PublicKey, config_folder
from kernels_hub.trust.sigstore_bundle import KNOWN_SIGNERS, SigstoreSigner

TRUST_FILE = "KERNELS_HUB_TRUST"
"""Environment variable: path of the policy file."""
SCHEMA = 1
ACTIONS = ("allow", "publisher", "signature", "deny")
SWITCHES = ("publisher", "trust_remote_code", "locked")

Signer = PublicKey | SigstoreSigner

_STRICT = ("deny", "signature")
"""Actions whose patterns match whatever the case, since a Hub may not tell cases apart."""
_PATTERN = re.compile(r"\*|[A-Za-z0-9_.*?-]+/[A-Za-z0-9_.*?-]+", re.ASCII)
_GITHUB = re.compile(r"[A-Za-z0-9-]+/[A-Za-z0-9_.-]+", re.ASCII)
_WORKFLOW = re.compile(r"[A-Za-z0-9_.-]+\.ya?ml@refs/[A-Za-z0-9_./-]+", re.ASCII)
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Rule:
    """One entry of a policy."""

    action: str
    """One of `ACTIONS`."""
    repositories: tuple[str, ...]
    """Patterns over repository names: "org/name", "org/*", "*"."""
    endpoint: str | None = None
    """The Hub that it is about; None for every one."""
    signers: tuple[Signer, ...] = ()
    """For a signature: one of these."""
    number: int = field(default=0, compare=False)
    """Its place in the file, from 1."""

    def __str__(self) -> str:
        where = "" if self.endpoint is None else f" on {self.endpoint}"
        return f"{self.action} {', '.join(self.repositories)}{where}"

    def matches(self, repo_id: str, endpoint: str) -> bool:
        """Whether it is about this repository on this Hub. Raises TrustError for what is no endpoint."""
        if self.endpoint is not None and self.endpoint != _compared(endpoint):
            return False
        return any(matches(pattern, repo_id, self.action in _STRICT) for pattern in self.repositories)


@dataclass(frozen=True)
class TrustPolicy:
    """A policy file, read and checked; or the default, where there is none."""

    path: Path
    exists: bool
    rules: tuple[Rule, ...] = ()
    publisher: bool = True
    trust_remote_code: bool = True
    locked: bool = True

    def cite(self, rule: Rule) -> str:
        """A rule and where it stands."""
        return f"rule {rule.number} of {self.path} ({rule})"

    def matching(self, action: str, repo_id: str, endpoint: str) -> list[Rule]:
        """The rules of one kind that are about this repository on this Hub, in the file's order."""
        return [rule for rule in self.rules if rule.action == action and rule.matches(repo_id, endpoint)]


def policy_path() -> Path:
    """Where the policy file is, or would be."""
    named = os.environ.get(TRUST_FILE)
    return Path(named).expanduser() if named else config_folder() / "trust.toml"


def load_policy() -> TrustPolicy:
    """The policy in force.

    Raises TrustError, naming file, key and what was expected, for a file that cannot be read, that
    every user of the machine may write, or that is malformed; also for one that `KERNELS_HUB_TRUST`
    names and that does not exist. Never falls back to another policy.
    """
    path = policy_path()
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if os.name == "posix" and status.st_mode & stat.S_IWOTH:
                raise TrustError(
                    f"the trust policy {path} may be changed by every user (mode "
                    f"{stat.S_IMODE(status.st_mode):04o}), so it is not followed and no repository's code runs; "
                    f"read it, then: chmod o-w {path}"
                )
            content = file.read()
    except FileNotFoundError as error:
        if os.environ.get(TRUST_FILE):
            raise TrustError(
                f"the trust policy {path}, which {TRUST_FILE} names, does not exist, so no repository's code "
                f"runs; unset {TRUST_FILE}, or make the file, such as with: kernels-hub trust allow ORG/NAME"
            ) from error
        return TrustPolicy(path, exists=False)
    except TrustError:
        raise  # which is an OSError
    except OSError as error:
        raise TrustError(
            f"the trust policy {path} cannot be read ({error}), so no repository's code runs"
        ) from error
    return parse_policy(content, path)


@lru_cache(maxsize=4)  # by content: a file's times and size do not always tell that it changed
def parse_policy(content: bytes, path: Path) -> TrustPolicy:
    """A policy from its text. Raises TrustError naming file, key and what was expected."""
    try:
        document = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise TrustError(
            f"the trust policy {path} is not TOML, so no repository's code runs: {error}; correct or remove it"
        ) from error
    schema = document.pop("schema", None)
    if schema != SCHEMA or isinstance(schema, bool):
        _refuse(path, "schema", f"expected {SCHEMA}, the format that this version reads, got {schema!r}")
    switches: dict[str, bool] = {}
    for name in SWITCHES:
        value = document.pop(name, True)
        if not isinstance(value, bool):
            _refuse(path, name, f"expected true or false, got {value!r}")
        switches[name] = value
    entries = document.pop("rule", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        _refuse(path, "rule", "expected tables, [[rule]]")
    if document:
        key = next(iter(document))
        _refuse(path, key, f"expected one of schema, {', '.join(SWITCHES)}, rule")
    rules = tuple(_rule(entry, number, path) for number, entry in enumerate(entries, 1))
    return TrustPolicy(path, True, rules, **switches)


# -- matching ---------------------------------------------------------------------------------------


def matches(pattern: str, repo_id: str, any_case: bool = False) -> bool:
    """Whether a pattern covers a repository: "*" every one, "org/*" those of one organisation."""
    if pattern == "*":
        return True
    expression = re.escape(pattern).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
    return re.fullmatch(expression, repo_id, re.IGNORECASE | re.ASCII if any_case else re.ASCII) is not None


def normal_endpoint(url: str) -> str:
    """An endpoint as rules compare it: scheme and host in lower case, no default port, no slash at the end.

    Raises ValueError for what is not an http(s) URL, or carries a user name, query or fragment.
    """
    parts = urlsplit(url)
    host, port = parts.hostname, parts.port
    if parts.scheme not in _PORTS or not host or "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(f"expected a URL such as 'https://huggingface.co', got {url!r}")
    host = f"[{host}]" if ":" in host else host
    shown_port = "" if port in (None, _PORTS[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{host}{shown_port}{parts.path.rstrip('/')}"


def without_credentials(url: str) -> str:
    """An endpoint that may be shown, and compared."""
    return re.sub(r"//[^/]*@", "//", url, count=1)


def _compared(endpoint: str) -> str:
    try:
        return normal_endpoint(without_credentials(endpoint))
    except ValueError as error:
        raise TrustError(
            f"the Hub's endpoint cannot be compared with the rules of the trust policy: {error}"
        ) from error


def check_pattern(pattern: object) -> str:
    """A pattern that can match something. Raises ValueError."""
    if not isinstance(pattern, str) or _PATTERN.fullmatch(pattern) is None:
        raise ValueError(
            f"expected a repository or a pattern such as 'org/name', 'org/*' or '*', got {pattern!r}"
            + (f"; for all of an organisation, {f'{pattern}/*'!r}" if _is_alone(pattern) else "")
        )
    return pattern


def _is_alone(pattern: object) -> bool:
    return isinstance(pattern, str) and _PATTERN.fullmatch(f"{pattern}/*") is not None


# -- parsing ----------------------------------------------------------------------------------------


def _rule(entry: Mapping[str, Any], number: int, path: Path) -> Rule:
    where = f"rule {number}"
    actions = [action for action in ACTIONS if action in entry]
    if len(actions) != 1:
        got = ", ".join(entry) or "nothing"
        _refuse(path, where, f"expected exactly one of {', '.join(ACTIONS)}, got {got}")
    (action,) = actions
    allowed = {action, "endpoint", "comment"} | ({"keys", "sigstore"} if action == "signature" else set())
    if unknown := sorted(entry.keys() - allowed):
        _refuse(path, f"{where}.{unknown[0]}", f"expected only {', '.join(sorted(allowed))} beside {action}")
    if not isinstance(entry.get("comment", ""), str):
        _refuse(path, f"{where}.comment", f"expected a string, got {entry['comment']!r}")
    patterns = entry[action] if isinstance(entry[action], list) else [entry[action]]
    if not patterns:
        _refuse(path, f"{where}.{action}", "expected at least one pattern such as 'org/*', got none")
    try:
        repositories = tuple(map(check_pattern, patterns))
    except ValueError as error:
        _refuse(path, f"{where}.{action}", str(error))
    return Rule(action, repositories, _endpoint(entry, where, path), _signers(entry, where, path), number)


def _endpoint(entry: Mapping[str, object], where: str, path: Path) -> str | None:
    value = entry.get("endpoint")
    if value is None:
        return None
    try:
        return normal_endpoint(value if isinstance(value, str) else repr(value))
    except ValueError as error:
        _refuse(path, f"{where}.endpoint", str(error))


def _signers(entry: Mapping[str, object], where: str, path: Path) -> tuple[Signer, ...]:
    if "signature" not in entry:
        return ()
    signers: list[Signer] = []
    keys = entry.get("keys", [])
    if not isinstance(keys, list):
        _refuse(path, f"{where}.keys", f"expected a list of public keys, 'ed25519:…', got {keys!r}")
    for index, text in enumerate(keys):
        try:
            if not isinstance(text, str):
                raise TrustError(f"expected a public key, 'ed25519:<base64> comment', got {text!r}")
            signers.append(PublicKey.parse(text))
        except TrustError as error:
            _refuse(path, f"{where}.keys[{index}]", str(error))
    entries = entry.get("sigstore", [])
    for index, value in enumerate(entries if isinstance(entries, list) else [entries]):
        signers.append(_sigstore(value, f"{where}.sigstore[{index}]", path))
    if not signers:
        _refuse(path, where, "expected 'keys' or 'sigstore': who may sign for these repositories")
    return tuple(dict.fromkeys(signers))


def _sigstore(value: object, where: str, path: Path) -> SigstoreSigner:
    if isinstance(value, str):
        if value not in KNOWN_SIGNERS:
            _refuse(path, where, f"expected one of {', '.join(KNOWN_SIGNERS)}, or a table, got {value!r}")
        return KNOWN_SIGNERS[value]
    if not isinstance(value, dict) or value.keys() != {"repository", "workflows"}:
        _refuse(path, where, 'expected {repository = "org/name", workflows = ["build.yaml@refs/heads/main"]}')
    repository, workflows = value["repository"], value["workflows"]
    if not isinstance(repository, str) or _GITHUB.fullmatch(repository) is None:
        _refuse(path, f"{where}.repository", f"expected a GitHub repository, 'org/name', got {repository!r}")
    if not isinstance(workflows, list) or not workflows:
        _refuse(path, f"{where}.workflows", f"expected a list of at least one workflow, got {workflows!r}")
    for workflow in workflows:
        if not isinstance(workflow, str) or _WORKFLOW.fullmatch(workflow) is None:
            _refuse(
                path,
                f"{where}.workflows",
                f"expected 'build.yaml@refs/heads/main' or alike, got {workflow!r}",
            )
    return SigstoreSigner(repository, tuple(workflows))


def _refuse(path: Path, key: str, problem: str) -> NoReturn:
    raise TrustError(f"the trust policy {path} is malformed, so no repository's code runs: {key}: {problem}")
