"""`kernels-hub trust`: rules are added, listed, checked and removed; refusals say what to do."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from kernels_hub.trust.keys import load_signing_key
from kernels_hub.trust.policy import load_policy, parse_policy
from kernels_hub.trust.signature import sign_variant
from tests.cli.conftest import Run
from tests.hub.trust_cases import key

ALICE, BOB = key("alice").public, key("bob").public


@pytest.fixture(autouse=True)
def policy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("KERNELS_HUB_TRUST", "KERNELS_HUB_KEYS", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "kernels_hub" / "trust.toml"


def check(run: Run, *arguments: str) -> list[tuple[str, str]]:
    result = run("trust", "check", *arguments, "--json")
    assert (result.code, result.err) == (0, "")
    return [(row["repository"], row["verdict"]) for row in json.loads(result.out)]


def test_the_default_policy(run: Run, policy_file: Path):
    listed = run("trust", "list")
    assert listed.out.splitlines() == [
        f"{policy_file} (not there: this is the default)",
        "  publisher          on",
        "  trust_remote_code  on",
        "  locked             on",
    ]
    assert check(run, "org/a") == [("org/a", "publisher")]
    assert not policy_file.exists()


def test_from_rule_to_verdict(run: Run, policy_file: Path):
    assert run("trust", "allow", "mine/*").out == f"rule 1 of {policy_file}: allow mine/*\n"
    assert run("trust", "deny", "evil/*").code == 0
    assert run("trust", "add", ALICE, "--for", "org/*").out.splitlines()[1:] == [f"  {ALICE}"]
    assert run("trust", "publisher", "*", "--endpoint", "https://Hub.example.org/").code == 0
    assert run("trust", "set", "publisher", "off").out == f"publisher is off in {policy_file}\n"
    assert check(run, "mine/a", "evil/a", "org/a", "else/a") == [
        ("mine/a", "admitted"), ("evil/a", "refused"), ("org/a", "admitted"), ("else/a", "refused")
    ]  # fmt: skip
    assert check(run, "else/a", "--endpoint", "https://hub.example.org") == [("else/a", "publisher")]
    lines = run("trust", "check", "mine/a", "evil/a", "org/a").out.splitlines()
    assert lines[0] == f"mine/a: admitted by rule 1 of {policy_file} (allow mine/*)"
    assert "rule 2" in lines[1] and "kernels-hub trust remove 2" in lines[1]
    assert lines[2].endswith(f"; needs a signature by {ALICE}")
    listed = json.loads(run("trust", "list", "--json").out)
    assert [(rule["number"], rule["action"], rule["endpoint"]) for rule in listed["rules"]] == [
        (1, "allow", None), (2, "deny", None), (3, "signature", None), (4, "publisher", "https://hub.example.org")
    ]  # fmt: skip
    assert listed["rules"][2]["signers"] == [str(ALICE)]
    assert (listed["publisher"], listed["locked"], listed["exists"]) == (False, True, True)
    assert str(ALICE) in run("trust", "list").out


def test_the_endpoint_is_that_of_the_client(run: Run, monkeypatch: pytest.MonkeyPatch):
    run("trust", "allow", "org/*", "--endpoint", "http://127.0.0.1:8000")
    assert check(run, "org/a") == [("org/a", "publisher")]
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:8000")
    assert check(run, "org/a") == [("org/a", "admitted")]


def test_adding_again(run: Run, policy_file: Path):
    run("trust", "add", str(ALICE), "--for", "org/*")
    assert "(it was there)" in run("trust", "add", ALICE.id, "--for", "org/*").out
    assert run("trust", "add", str(BOB), "--for", "org/*").out.splitlines()[1:] == [f"  {ALICE}", f"  {BOB}"]
    assert "it was before" in run("trust", "set", "locked", "on").out
    assert len(load_policy().rules) == 1


def test_a_key_of_ones_own_and_sigstore(run: Run):
    public = run("key", "new", "own").out.strip()
    run("trust", "add", "own", "--for", "org/*")
    run("trust", "add", "kernels-community", "--for", "org/*")
    assert [str(signer) for signer in load_policy().rules[0].signers] == [public, "kernels-community"]


def test_removing(run: Run, policy_file: Path):
    for arguments in (("allow", "a/*"), ("deny", "b/*"), ("deny", "a/*")):
        run("trust", *arguments)
    run("trust", "add", str(ALICE), "--for", "c/*")
    last = run("trust", "remove", str(ALICE))
    assert (last.code, last.out) == (1, "")
    assert "would need no signature" in last.err and "kernels-hub trust remove 4" in last.err
    run("trust", "add", str(BOB), "--for", "c/*")
    assert run("trust", "remove", ALICE.id).out == "removed the key from rule 4: signature c/*\n"
    assert run("trust", "remove", "a/*").out.splitlines() == [
        "removed 'a/*' from rule 1: allow a/*",
        "removed 'a/*' from rule 3: deny a/*",
    ]
    assert run("trust", "remove", "1").out == "removed rule 1: deny b/*\n"
    assert [str(rule) for rule in load_policy().rules] == ["signature c/*"]


def test_errors_change_nothing(run: Run, policy_file: Path):
    run("trust", "allow", "org/*")
    before = policy_file.read_bytes()
    for arguments, problem in (
        (("allow", "not a name"), "expected a repository or a pattern"),
        (("deny", "evil"), "got 'evil'; for all of an organisation, 'evil/*'"),
        (("deny", "org/*", "--endpoint", "hub"), "expected a URL"),
        (("add", "nobody", "--for", "org/*"), "is no public key"),
        (("add", "ed25519:AAAA", "--for", "org/*"), "not the base64 of 32 bytes"),
        (("remove", "7"), "has no rule 7"),
        (("remove", "other/*"), "is no public key"),
        (("set", "schema", "off"), "no switch 'schema'"),
        (("set", "locked", "no"), "expected on or off"),
        (("check", "evil"), "'evil' names no repository: expected org/name"),
    ):
        result = run("trust", *arguments)
        assert (result.code, result.out) == (1, ""), arguments
        assert problem in result.err
        assert policy_file.read_bytes() == before


def test_a_malformed_policy_is_reported_by_every_command(run: Run, policy_file: Path):
    policy_file.parent.mkdir(parents=True, exist_ok=True)
    policy_file.write_text("schema = 1\npublishers = true\n")
    for arguments in (
        ("list",),
        ("check", "a/b"),
        ("allow", "a/b"),
        ("remove", "1"),
        ("set", "locked", "off"),
    ):
        result = run("trust", *arguments)
        assert (result.code, result.out) == (1, "")
        assert "is malformed, so no repository's code runs: publishers: expected one of" in result.err


# -- docs/trust.md ----------------------------------------------------------------------------------

DOCUMENT = (Path(__file__).parents[2] / "docs" / "trust.md").read_text(encoding="utf-8")


def test_the_documented_policy_is_one():
    (text,) = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    policy = parse_policy(text.encode(), Path("docs/trust.md"))
    assert {rule.action for rule in policy.rules} == {"allow", "signature", "publisher", "deny"}
    assert all(rule.signers for rule in policy.rules if rule.action == "signature")


def test_every_documented_command_runs(run: Run, built_repository: Path):
    commands = re.findall(r"^    kernels-hub (.*)$", DOCUMENT, re.MULTILINE)
    assert len(commands) >= 12
    for command in commands:
        arguments = shlex.split(command, comments=True)
        if arguments[0] == "verify":
            for variant in (built_repository / "build").iterdir():
                sign_variant(variant, load_signing_key("alice"))
        arguments = [str(built_repository) if one == "PATH" else one for one in arguments]
        result = run(*arguments)
        assert (result.code, result.err.startswith("kernels-hub:")) == (0, False), (command, result.err)
