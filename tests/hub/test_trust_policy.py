"""The policy file: what it says, that a malformed one admits nothing, and that changes keep what is in it."""

from __future__ import annotations

import fnmatch
import os
import string
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_hub.errors import TrustError
from kernels_hub.trust.decision import admit
from kernels_hub.trust.policy import load_policy, matches, normal_endpoint, parse_policy
from kernels_hub.trust.policy_edit import (
    add_rule,
    parse_signer,
    remove_pattern,
    remove_rule,
    remove_signer,
    set_switch,
)
from kernels_hub.trust.sigstore_bundle import KNOWN_SIGNERS, SigstoreSigner
from tests.hub.trust_cases import CANDIDATE, HUB, key

ALICE, BOB = key("alice").public, key("bob").public


@pytest.fixture(autouse=True)
def policy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("KERNELS_HUB_TRUST", raising=False)
    monkeypatch.delenv("KERNELS_HUB_KEYS", raising=False)
    return tmp_path / "kernels_hub" / "trust.toml"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# -- reading ----------------------------------------------------------------------------------------

FULL = f"""\
schema = 1
publisher = false
locked = false

[[rule]]
allow = "mine/*"
comment = "we wrote these"

[[rule]]
signature = ["other/*", "third/kernel-?"]
keys = ["{ALICE}", "{BOB.id}"]
sigstore = ["kernels-community", {{repository = "a/b", workflows = ["w.yml@refs/tags/v1"]}}]

[[rule]]
publisher = "*"
endpoint = "HTTPS://Hub.Example.org:443/"

[[rule]]
deny = "evil/*"
"""


def test_a_full_policy(policy_file: Path):
    write(policy_file, FULL)
    policy = load_policy()
    assert (policy.path, policy.exists) == (policy_file, True)
    assert (policy.publisher, policy.trust_remote_code, policy.locked) == (False, True, False)
    assert [(rule.number, str(rule)) for rule in policy.rules] == [
        (1, "allow mine/*"),
        (2, "signature other/*, third/kernel-?"),
        (3, f"publisher * on {HUB}"),
        (4, "deny evil/*"),
    ]
    community = KNOWN_SIGNERS["kernels-community"]
    assert policy.rules[1].signers == (ALICE, BOB, community, SigstoreSigner("a/b", ("w.yml@refs/tags/v1",)))


def test_no_file_is_the_default_policy(policy_file: Path):
    policy = load_policy()
    assert (policy.exists, policy.rules) == (False, ())
    assert (policy.publisher, policy.trust_remote_code, policy.locked) == (True, True, True)


def test_a_file_that_was_named_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERNELS_HUB_TRUST", str(tmp_path / "mine.toml"))
    with pytest.raises(TrustError, match=r"mine\.toml, which KERNELS_HUB_TRUST names, does not exist"):
        load_policy()
    add_rule("allow", "a/b")
    assert load_policy().path == tmp_path / "mine.toml"


def test_a_changed_file_is_read_again(policy_file: Path):
    write(policy_file, "schema = 1\n")
    assert load_policy() is load_policy()
    for value in ("false", "true ") * 20:  # of one size, and within one tick of the file system's clock
        write(policy_file, f"schema = 1\npublisher = {value}\n")
        assert load_policy().publisher == (value == "true ")


MALFORMED = {
    "no schema": ("", "schema: expected 1"),
    "another schema": ("schema = 2", "schema: expected 1.*got 2"),
    "not TOML": ("schema = ", "is not TOML"),
    "not UTF-8": (b"schema = 1\n# \xff", "is not TOML"),
    "twice": ("schema = 1\nschema = 1", "is not TOML"),
    "unknown key": ("schema = 1\npublishers = true", "publishers: expected one of schema, publisher"),
    "switch": ("schema = 1\npublisher = 1", "publisher: expected true or false, got 1"),
    "switch as text": ('schema = 1\nlocked = "no"', "locked: expected true or false, got 'no'"),
    "rule is a table": ("schema = 1\n[rule]\nallow = 'a/b'", r"rule: expected tables, \[\[rule\]\]"),
    "rules of text": ("schema = 1\nrule = ['allow a/b']", "rule: expected tables"),
    "empty rule": ("schema = 1\n[[rule]]", "rule 1: expected exactly one of allow.*got nothing"),
    "misspelt action": ("schema = 1\n[[rule]]\ndenny = 'a/b'", "rule 1: expected exactly one of.*got denny"),
    "two actions": ("schema = 1\n[[rule]]\nallow = 'a/b'\ndeny = 'c/d'", "rule 1: expected exactly one of"),
    "second rule": ("schema = 1\n[[rule]]\nallow = 'a/b'\n[[rule]]\nallow = 3", "rule 2.allow: expected a repository.*got 3"),
    "no pattern": ("schema = 1\n[[rule]]\nallow = []", "rule 1.allow: expected at least one pattern"),
    "empty pattern": ("schema = 1\n[[rule]]\nallow = ''", "rule 1.allow: expected a repository"),
    "pattern with a class": ("schema = 1\n[[rule]]\ndeny = '[ab]/c'", "rule 1.deny: expected a repository"),
    "pattern with two slashes": ("schema = 1\n[[rule]]\ndeny = 'a/b/c'", "rule 1.deny: expected a repository"),
    "pattern with a space": ("schema = 1\n[[rule]]\ndeny = 'a/b '", "rule 1.deny: expected a repository"),
    "pattern with a URL": ("schema = 1\n[[rule]]\ndeny = 'https://hub/a/b'", "rule 1.deny: expected a repository"),
    "pattern with a line end": ('schema = 1\n[[rule]]\ndeny = "a/b\\n"', "rule 1.deny: expected a repository"),
    "pattern of another script": ("schema = 1\n[[rule]]\ndeny = 'еvil/*'", "rule 1.deny: expected a repository"),
    "unknown key in a rule": ("schema = 1\n[[rule]]\nallow = 'a/b'\nend_point = 'x'", "rule 1.end_point: expected only"),
    "keys beside allow": (f"schema = 1\n[[rule]]\nallow = 'a/b'\nkeys = ['{ALICE}']", "rule 1.keys: expected only"),
    "comment": ("schema = 1\n[[rule]]\nallow = 'a/b'\ncomment = 3", "rule 1.comment: expected a string"),
    "endpoint": ("schema = 1\n[[rule]]\nallow = 'a/b'\nendpoint = 'hub'", "rule 1.endpoint: expected a URL"),
    "endpoint with a user": ("schema = 1\n[[rule]]\nallow = 'a/b'\nendpoint = 'https://u@h'", "rule 1.endpoint: expected a URL"),
    "endpoint's port": ("schema = 1\n[[rule]]\nallow = 'a/b'\nendpoint = 'https://h:x'", "rule 1.endpoint: "),
    "endpoint's type": ("schema = 1\n[[rule]]\nallow = 'a/b'\nendpoint = 3", "rule 1.endpoint: expected a URL"),
    "no signer": ("schema = 1\n[[rule]]\nsignature = 'a/*'", "rule 1: expected 'keys' or 'sigstore'"),
    "no keys": ("schema = 1\n[[rule]]\nsignature = 'a/*'\nkeys = []", "rule 1: expected 'keys' or 'sigstore'"),
    "keys as text": (f"schema = 1\n[[rule]]\nsignature = 'a/*'\nkeys = '{ALICE}'", "rule 1.keys: expected a list"),
    "a bad key": (f"schema = 1\n[[rule]]\nsignature = 'a/*'\nkeys = ['{ALICE}', 'ed25519:AA']", r"rule 1.keys\[1\]: .*public key"),
    "a key that is a number": ("schema = 1\n[[rule]]\nsignature = 'a/*'\nkeys = [1]", r"rule 1.keys\[0\]: expected a public key"),
    "unknown sigstore": ("schema = 1\n[[rule]]\nsignature = 'a/*'\nsigstore = 'kernels'", "sigstore.*expected one of kernels-community"),
    "sigstore's keys": ("schema = 1\n[[rule]]\nsignature = 'a/*'\nsigstore = {repository = 'a/b'}", "sigstore.*expected {repository"),
    "sigstore's repository": ("schema = 1\n[[rule]]\nsignature = 'a/*'\nsigstore = {repository = 'https://github.com/a/b', workflows = ['w.yml@refs/heads/main']}", "sigstore.*repository: expected a GitHub"),
    "sigstore's workflow": ("schema = 1\n[[rule]]\nsignature = 'a/*'\nsigstore = {repository = 'a/b', workflows = ['w.yml']}", "sigstore.*workflows: expected"),
    "no workflow": ("schema = 1\n[[rule]]\nsignature = 'a/*'\nsigstore = {repository = 'a/b', workflows = []}", "sigstore.*workflows: expected a list"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "problem"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_policy_admits_nothing(policy_file: Path, text: str | bytes, problem: str):
    content = text if isinstance(text, bytes) else text.encode()
    policy_file.parent.mkdir(parents=True)
    policy_file.write_bytes(content)
    with pytest.raises(TrustError, match=problem) as raised:
        admit(CANDIDATE, lambda organisation: pytest.fail("the Hub was asked"))
    assert str(policy_file) in str(raised.value)
    assert "no repository's code runs" in str(raised.value)
    with pytest.raises(TrustError):
        add_rule("allow", "a/b")
    assert policy_file.read_bytes() == content


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")
@pytest.mark.parametrize("kind", ["writable", "folder", "loop"])
def test_a_policy_that_cannot_be_relied_on_admits_nothing(policy_file: Path, kind: str):
    policy_file.parent.mkdir(parents=True)
    if kind == "folder":
        policy_file.mkdir()
    elif kind == "loop":
        policy_file.symlink_to(policy_file)
    else:
        policy_file.write_text("schema = 1\n")
        policy_file.chmod(0o646)
    with pytest.raises(TrustError, match="no repository's code runs") as raised:
        admit(CANDIDATE, lambda organisation: True)
    assert ("chmod o-w" in str(raised.value)) == (kind == "writable")
    assert ("cannot be read" in str(raised.value)) == (kind != "writable")


# -- matching ---------------------------------------------------------------------------------------

_NAME = st.text(string.ascii_lowercase[:4] + ".-_", min_size=1, max_size=5)
_PATTERN = st.text(string.ascii_lowercase[:4] + ".-*?", min_size=1, max_size=5)


@given(pattern=st.tuples(_PATTERN, _PATTERN), name=st.tuples(_NAME, _NAME))
def test_patterns_match_part_by_part(pattern: tuple[str, str], name: tuple[str, str]):
    expected = all(fnmatch.fnmatchcase(part, wanted) for part, wanted in zip(name, pattern, strict=True))
    assert matches("/".join(pattern), "/".join(name)) == expected
    assert matches("*", "/".join(name))
    assert not matches(pattern[0], "/".join(name)) or pattern[0] == "*"


@pytest.mark.parametrize(
    ("pattern", "name", "exact", "any_case"),
    [
        ("org/*", "org/a", True, True),
        ("org/*", "ORG/A", False, True),
        ("org/*", "organisation/a", False, False),
        ("org/*", "org", False, False),
        ("*/a", "org/a", True, True),
        ("o.g/a", "oxg/a", False, False),
        ("org/a", "org/a\n", False, False),
        ("org/k", "org/\u212a", False, False),  # the sign of Kelvin, which folds to k
        ("gpt2", "gpt2", True, True),
    ],
)
def test_patterns(pattern: str, name: str, exact: bool, any_case: bool):
    assert (matches(pattern, name), matches(pattern, name, any_case=True)) == (exact, any_case)


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("https://huggingface.co", "https://huggingface.co"),
        ("HTTPS://HuggingFace.co:443/", "https://huggingface.co"),
        ("http://localhost:8080/hub/", "http://localhost:8080/hub"),
        ("http://[::1]:80", "http://[::1]"),
    ],
)
def test_endpoints_are_compared_in_one_spelling(url: str, normal: str):
    assert normal_endpoint(url) == normal == normal_endpoint(normal)


# -- changing ---------------------------------------------------------------------------------------

OWN = f"""\
# ours, do not touch

schema = 1   # the only one
publisher = true

[[rule]]     # our colleagues
signature = "other/*"
keys = [
    "{ALICE}",  # since 2026
]

# never again
[[rule]]
deny = ["evil/*", "worse/*"]
"""


def test_the_first_change_makes_the_file(policy_file: Path):
    rule, changed = add_rule("allow", "org/name")
    assert (rule.number, changed) == (1, True)
    assert policy_file.read_text().startswith("# Which repositories' code may run here")
    assert [str(rule) for rule in load_policy().rules] == ["allow org/name"]
    assert sorted(path.name for path in policy_file.parent.iterdir()) == [".trust.toml.lock", "trust.toml"]


def test_comments_and_order_stay(policy_file: Path):
    write(policy_file, OWN)
    add_rule("allow", "mine/*", endpoint="https://Hub.example.org/")
    add_rule("signature", "other/*", signers=[BOB, KNOWN_SIGNERS["kernels-community"]])
    set_switch("publisher", False)
    set_switch("trust_remote_code", False)
    after = policy_file.read_text()
    for comment in (
        "# ours, do not touch",
        "# the only one",
        "# our colleagues",
        "# since 2026",
        "# never again",
    ):
        assert comment in after
    policy = load_policy()
    assert (policy.publisher, policy.trust_remote_code, policy.locked) == (False, False, True)
    assert [str(rule) for rule in policy.rules] == [
        "signature other/*",
        "deny evil/*, worse/*",
        f"allow mine/* on {HUB}",
    ]
    assert policy.rules[0].signers == (ALICE, BOB, KNOWN_SIGNERS["kernels-community"])
    remove_rule(3)
    remove_signer(BOB)
    remove_signer(KNOWN_SIGNERS["kernels-community"])
    remove_pattern("worse/*")
    assert [str(rule) for rule in load_policy().rules] == ["signature other/*", "deny evil/*"]
    assert load_policy().rules[0].signers == (ALICE,)
    assert "# never again" in policy_file.read_text()


def test_what_is_there_is_not_added_again(policy_file: Path):
    assert set_switch("locked", True) is False
    assert not policy_file.exists()
    for _ in range(2):
        _, changed = add_rule("signature", "org/*", signers=[ALICE])
    assert not changed
    before = policy_file.read_bytes()
    assert add_rule("signature", "org/*", signers=[ALICE])[1] is False
    assert set_switch("locked", True) is False
    assert policy_file.read_bytes() == before
    assert add_rule("signature", "org/*", signers=[ALICE], endpoint=HUB)[0].number == 2


@pytest.mark.parametrize(
    "rules", ['rule = [{allow = "a/b"}]\n', '[[rule]]\nsignature = "c/*"\nsigstore = "kernels-community"\n']
)
def test_other_spellings_of_rules(policy_file: Path, rules: str):
    write(policy_file, f"schema = 1\n{rules}")
    before = len(load_policy().rules)
    add_rule("deny", "evil/*")
    add_rule("signature", "c/*", signers=[ALICE, KNOWN_SIGNERS["kernels-community"]])
    set_switch("locked", False)
    policy = load_policy()
    assert len(policy.rules) >= before + 1 and not policy.locked
    assert {ALICE, KNOWN_SIGNERS["kernels-community"]} in [set(rule.signers) for rule in policy.rules]
    remove_pattern("evil/*")
    remove_pattern("c/*")
    assert "evil" not in policy_file.read_text()


def test_the_last_signer_is_not_removed(policy_file: Path):
    """It would turn a repository that needs a signature into one that needs none."""
    add_rule("signature", "org/*", signers=[ALICE])
    add_rule("signature", "two/*", signers=[ALICE, BOB])
    before = policy_file.read_bytes()
    with pytest.raises(TrustError, match="would need no signature.*trust remove 1"):
        remove_signer(ALICE)
    assert policy_file.read_bytes() == before
    remove_rule(1)
    assert [rule.number for rule in remove_signer(ALICE)] == [1]
    assert load_policy().rules[0].signers == (BOB,)


@pytest.mark.parametrize(
    "change",
    [lambda: remove_rule(2), lambda: remove_rule(0), lambda: remove_pattern("org/b"), lambda: remove_signer(BOB),
     lambda: set_switch("schema", False), lambda: add_rule("allow", "a b"), lambda: add_rule("allow", "a/b", endpoint="hub"),
     lambda: add_rule("signature", "a/b"),
     lambda: add_rule("signature", "a/b", signers=[SigstoreSigner("a/b", ("w.yml@refs/heads/main",))])],
)  # fmt: skip
def test_a_change_that_cannot_be_changes_nothing(policy_file: Path, change):
    add_rule("allow", "org/*")
    before = policy_file.read_bytes()
    with pytest.raises(TrustError):
        change()
    assert policy_file.read_bytes() == before


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions and links")
def test_permissions_and_links_stay(policy_file: Path, tmp_path: Path):
    kept = tmp_path / "dotfiles" / "trust.toml"
    write(kept, "schema = 1\n")
    kept.chmod(0o600)
    policy_file.parent.mkdir(parents=True)
    policy_file.symlink_to(kept)
    add_rule("allow", "org/*")
    assert policy_file.is_symlink()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert "org/*" in kept.read_text()


def test_changes_at_once_are_all_made(policy_file: Path):
    code = (
        "import sys\nfrom kernels_hub.trust.policy_edit import add_rule\n"
        "for i in range(10): add_rule('allow', f'org{sys.argv[1]}/k{i}')"
    )
    runs = [subprocess.Popen([sys.executable, "-c", code, str(number)]) for number in range(3)]
    assert [run.wait(60) for run in runs] == [0, 0, 0]
    assert {rule.repositories[0] for rule in load_policy().rules} == {
        f"org{number}/k{i}" for number in range(3) for i in range(10)
    }


def test_a_change_waits_for_another_but_not_for_ever(policy_file: Path, monkeypatch: pytest.MonkeyPatch):
    from filelock import FileLock

    add_rule("deny", "evil/*")
    monkeypatch.setattr("kernels_hub.trust.policy_edit._PATIENCE", 0.05)
    code = (
        "import sys\nfrom filelock import FileLock\n"
        "with FileLock(sys.argv[1]): print('held', flush=True); sys.stdin.read()"
    )
    lock = policy_file.with_name(".trust.toml.lock")
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(TrustError, match="cannot be changed"):
            remove_rule(1)
        holder.kill()
    assert remove_rule(1).action == "deny"
    with FileLock(lock):
        assert load_policy().rules == ()


def test_a_full_disk_leaves_the_policy(policy_file: Path, monkeypatch: pytest.MonkeyPatch):
    add_rule("deny", "evil/*")
    before = policy_file.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TrustError, match="cannot be changed.*No space left"):
        remove_rule(1)
    assert policy_file.read_bytes() == before
    assert sorted(path.name for path in policy_file.parent.iterdir()) == [".trust.toml.lock", "trust.toml"]


# -- who is meant -----------------------------------------------------------------------------------


def test_ways_to_name_a_signer(tmp_path: Path):
    from kernels_hub.trust.keys import new_key

    made = new_key("own", "secret")
    (tmp_path / "alice.pub").write_text(f"{ALICE}\n")
    assert parse_signer("own") == made.public
    assert parse_signer(str(made.path)) == made.public
    assert parse_signer(str(tmp_path / "alice.pub")) == ALICE
    assert parse_signer(str(ALICE)) == parse_signer(ALICE.id) == ALICE
    assert parse_signer("kernels-community") == KNOWN_SIGNERS["kernels-community"]
    (tmp_path / "two.pub").write_text(f"{ALICE}\n{BOB}\n")
    for text in ("nobody", str(tmp_path / "two.pub"), "ed25519:AAAA", "", str(tmp_path)):
        with pytest.raises(TrustError):
            parse_signer(text)


def test_parsing_needs_no_file(tmp_path: Path):
    assert parse_policy(FULL.encode(), tmp_path / "not" / "there").rules
