"""Which rule decides, in which order; what refusals say; when the Hub is asked."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from kernels_hub.errors import HubError, SignatureError, TrustError
from kernels_hub.trust.decision import Admission, RemoteCode, admit, check_signature, preview
from kernels_hub.trust.signature import sign_variant
from kernels_hub.trust.sigstore_bundle import KNOWN_SIGNERS
from tests.hub.trust_cases import CANDIDATE, HUB, key, make_variant

ALICE, BOB = key("alice"), key("bob")


@pytest.fixture(autouse=True)
def policy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("KERNELS_HUB_TRUST", raising=False)
    (tmp_path / "kernels_hub").mkdir()
    return tmp_path / "kernels_hub" / "trust.toml"


class Publisher:
    """The Hub's answer, and who was asked about."""

    def __init__(self, trusted: bool = False) -> None:
        self.trusted = trusted
        self.asked: list[str] = []

    def __call__(self, organisation: str) -> bool:
        self.asked.append(organisation)
        return self.trusted


def refuses(candidate: RemoteCode, publisher: Publisher | None = None) -> str:
    with pytest.raises(TrustError) as raised:
        admit(candidate, publisher or Publisher())
    return str(raised.value)


# -- precedence -------------------------------------------------------------------------------------

DENY = "[[rule]]\ndeny = 'org/*'\n"
SIGN = f"[[rule]]\nsignature = 'org/*'\nkeys = ['{ALICE.public}']\n"
ALLOW = "[[rule]]\nallow = 'org/doubling'\n"
FLAG = "[[rule]]\npublisher = 'org/*'\n"

PRECEDENCE = {
    # policy, candidate, the Hub's flag -> start of the rule that admits, or None; whether the Hub is asked
    "nothing": ("", {}, False, None, True),
    "flag": ("", {}, True, "publisher = true: the flag of publisher 'org'", True),
    "flag off": ("publisher = false\n", {}, True, None, False),
    "flag by rule": ("publisher = false\n" + FLAG, {}, True, "rule 1 of", True),
    "flag by rule, not set": ("publisher = false\n" + FLAG, {}, False, None, True),
    "lock": ("", {"locked": True}, False, "locked", False),
    "lock off": ("locked = false\n", {"locked": True}, False, None, True),
    "call": ("", {"trust_remote_code": True}, False, "trust_remote_code", False),
    "call by name": ("", {"trust_remote_code": ("a/b", "org/doubling")}, False, "trust_remote_code", False),
    "call by other names": ("", {"trust_remote_code": ("org/doubl", "Org/doubling", "org/*")}, False, None, True),
    "call off": ("trust_remote_code = false\n", {"trust_remote_code": True}, False, None, True),
    "lock before call": ("", {"locked": True, "trust_remote_code": True}, False, "locked", False),
    "allow": (ALLOW, {}, False, "rule 1 of", False),
    "allow, everything off": ("publisher = false\nlocked = false\ntrust_remote_code = false\n" + ALLOW, {}, False, "rule 1 of", False),
    "allow another": ("[[rule]]\nallow = 'org/doublings'\n", {}, False, None, True),
    "allow in another case": ("[[rule]]\nallow = 'ORG/doubling'\n", {}, False, None, True),
    "allow elsewhere": ("[[rule]]\nallow = 'org/*'\nendpoint = 'https://other.example.org'\n", {}, False, None, True),
    "allow here": ("[[rule]]\nallow = 'org/*'\nendpoint = 'https://HUB.example.org:443/'\n", {}, False, "rule 1 of", False),
    "deny": (DENY, {}, True, None, False),
    "deny over call": (DENY, {"trust_remote_code": True}, True, None, False),
    "deny over lock": (DENY, {"locked": True}, True, None, False),
    "deny over allow": (ALLOW + DENY, {}, True, None, False),
    "deny over signature": (SIGN + DENY, {}, True, None, False),
    "deny in another case": ("[[rule]]\ndeny = 'ORG/Doubling'\n", {"trust_remote_code": True}, True, None, False),
    "deny elsewhere": ("[[rule]]\ndeny = '*'\nendpoint = 'https://other.example.org'\n", {}, True, "publisher", True),
    "deny all": ("[[rule]]\ndeny = '*'\n" + ALLOW, {}, True, None, False),
}  # fmt: skip


@pytest.mark.parametrize(("text", "changes", "flag", "rule", "asked"), PRECEDENCE.values(), ids=PRECEDENCE)
def test_precedence(
    policy_file: Path, text: str, changes: dict[str, object], flag: bool, rule: str | None, asked: bool
):
    policy_file.write_text(f"schema = 1\n{text}")
    publisher, candidate = Publisher(flag), replace(CANDIDATE, **changes)
    if rule is None:
        refuses(candidate, publisher)
    else:
        admission = admit(candidate, publisher)
        assert admission.rule.startswith(rule)
        assert admission.signature_keys == ()
    assert publisher.asked == (["org"] if asked else [])


SIGNATURE_STILL_NEEDED = {
    "alone": ("", {}),
    "though allowed": (ALLOW, {}),
    "though locked": ("", {"locked": True}),
    "though the caller trusts it": ("", {"trust_remote_code": True}),
    "though named by the caller": ("", {"trust_remote_code": ("org/doubling",)}),
    "though its publisher is trusted": (FLAG, {}),
    "in another case": ("", {"repo_id": "Org/Doubling"}),
}


@pytest.mark.parametrize(("text", "changes"), SIGNATURE_STILL_NEEDED.values(), ids=SIGNATURE_STILL_NEEDED)
def test_a_required_signature_is_required(
    policy_file: Path, tmp_path: Path, text: str, changes: dict[str, object]
):
    policy_file.write_text(f"schema = 1\n{text}{SIGN}")
    candidate = replace(CANDIDATE, **changes)
    publisher = Publisher(True)
    admission = admit(candidate, publisher)
    assert admission.signature_keys == (ALICE.public,)
    assert publisher.asked == []
    variant = make_variant(tmp_path / "torch-cpu")
    with pytest.raises(SignatureError, match="signature org/"):
        check_signature(admission, candidate, variant)
    sign_variant(variant, BOB)
    with pytest.raises(SignatureError, match="it lacks a signature by ed25519:.* alice"):
        check_signature(admission, candidate, variant)
    sign_variant(variant, ALICE)
    assert "__init__.py" in check_signature(admission, candidate, variant)


def test_every_combination(policy_file: Path):
    """Against the sentence in the documentation, read as sets of reasons."""
    for deny, sign, allow, flag_rule, *switches in itertools.product([False, True], repeat=7):
        names = ("publisher", "locked", "trust_remote_code")
        lines = [f"{name} = {str(on).lower()}\n" for name, on in zip(names, switches, strict=True)]
        rules = [rule for rule, on in ((ALLOW, allow), (SIGN, sign), (FLAG, flag_rule), (DENY, deny)) if on]
        policy_file.write_text("schema = 1\n" + "".join(lines + rules))
        publisher_on, locked_on, call_on = switches
        for locked, call, flag in itertools.product([False, True], repeat=3):
            reasons = {
                "allow": allow,
                "lock": locked and locked_on,
                "call": call and call_on,
                "flag": flag and (publisher_on or flag_rule),
                "signature": sign,
            }
            candidate = replace(CANDIDATE, locked=locked, trust_remote_code=call)
            publisher = Publisher(flag)
            if deny or not any(reasons.values()):
                refuses(candidate, publisher)
            else:
                assert bool(admit(candidate, publisher).signature_keys) == sign
            others = any(holds for reason, holds in reasons.items() if reason != "flag")
            assert bool(publisher.asked) == (not deny and not others and (publisher_on or flag_rule))


def test_keys_of_every_rule_that_matches_count(policy_file: Path):
    policy_file.write_text(
        f"schema = 1\n[[rule]]\nsignature = '*'\nkeys = ['{BOB.public}']\nsigstore = 'kernels-community'\n{SIGN}"
    )
    admission = admit(CANDIDATE, Publisher())
    assert admission.signature_keys == (BOB.public, KNOWN_SIGNERS["kernels-community"], ALICE.public)
    other = admit(replace(CANDIDATE, repo_id="else/doubling"), Publisher())
    assert ALICE.public not in other.signature_keys


def test_a_key_trusted_for_another_organisation(policy_file: Path, tmp_path: Path):
    policy_file.write_text(f"schema = 1\n{SIGN}[[rule]]\nsignature = 'bobs/*'\nkeys = ['{BOB.public}']\n")
    variant = make_variant(tmp_path / "torch-cpu")
    sign_variant(variant, BOB)
    with pytest.raises(SignatureError, match="it lacks a signature by"):
        check_signature(admit(CANDIDATE, Publisher()), CANDIDATE, variant)
    theirs = replace(CANDIDATE, repo_id="bobs/doubling")
    assert check_signature(admit(theirs, Publisher()), theirs, variant)


# -- names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", "/", "org/", "/name", "a/b/c", "../a", "org/..", "org/name ", "оrg/name", "org/na\u212ae", "org\\name", "-/a"]
)  # fmt: skip
def test_names_that_are_none_are_never_admitted(policy_file: Path, name: str):
    policy_file.write_text("schema = 1\n[[rule]]\nallow = '*'\n")
    candidate = replace(CANDIDATE, repo_id=name, trust_remote_code=True, locked=True)
    assert "not of the form 'org/name'" in refuses(candidate, Publisher(True))


def test_a_repository_without_organisation_has_no_publisher():
    publisher = Publisher(True)
    message = refuses(replace(CANDIDATE, repo_id="gpt2"), publisher)
    assert "belongs to no organisation" in message
    assert publisher.asked == []
    assert admit(replace(CANDIDATE, repo_id="gpt2", trust_remote_code=("gpt2",)), publisher)


def test_one_name_given_as_text_is_not_a_set_of_letters():
    assert admit(replace(CANDIDATE, trust_remote_code="org/doubling"), Publisher())  # type: ignore[arg-type]
    refuses(replace(CANDIDATE, trust_remote_code="org/doubling/more"))  # type: ignore[arg-type]


# -- messages ---------------------------------------------------------------------------------------


def test_a_refusal_says_why_and_how_to_allow():
    message = refuses(CANDIDATE)
    for part in (
        f"kernel 'org/doubling' on {HUB} is not trusted",
        "the default policy",
        "'org' is not a trusted publisher there",
        "no kernels.lock pins it",
        "trust_remote_code is not set",
        "kernels-hub trust allow org/doubling",
        "kernels-hub trust add KEY --for org/doubling",
        "trust_remote_code=['org/doubling']",
        "kernels-hub lock",
    ):
        assert part in message


def test_a_refusal_offers_only_what_would_help(policy_file: Path):
    policy_file.write_text("schema = 1\npublisher = false\nlocked = false\ntrust_remote_code = false\n")
    message = refuses(replace(CANDIDATE, trust_remote_code=True, locked=True))
    assert "trust_remote_code = false (it was given in vain)" in message
    assert "locked = false (it was given in vain)" in message
    assert "in the call" not in message and "kernels-hub lock" not in message
    assert "kernels-hub trust allow" in message


def test_a_denial_names_its_rule(policy_file: Path):
    policy_file.write_text(f"schema = 1\n{ALLOW}{DENY}")
    message = refuses(CANDIDATE)
    assert f"rule 2 of {policy_file} (deny org/*)" in message
    assert "kernels-hub trust remove 2" in message


def test_network_trouble_passes_through():
    trouble = HubError("the Hub does not answer")

    def unreachable(organisation: str) -> bool:
        raise trouble

    with pytest.raises(HubError) as raised:
        admit(CANDIDATE, unreachable)
    assert raised.value is trouble
    assert not isinstance(raised.value, TrustError)
    assert admit(replace(CANDIDATE, locked=True), unreachable)


def test_endpoints_with_credentials(policy_file: Path):
    """They are compared, and shown, without."""
    policy_file.write_text(f"schema = 1\n[[rule]]\nallow = 'org/*'\nendpoint = '{HUB}'\n")
    secret = HUB.replace("//", "//user:s3cret@")
    assert admit(replace(CANDIDATE, endpoint=secret), Publisher())
    assert "s3cret" not in refuses(replace(CANDIDATE, endpoint=secret, repo_id="a/b"))
    policy_file.write_text("schema = 1\n")
    assert "s3cret" not in admit(replace(CANDIDATE, endpoint=secret), Publisher(True)).rule


def test_an_endpoint_that_is_none_is_refused_where_it_matters(policy_file: Path):
    policy_file.write_text(f"schema = 1\n[[rule]]\ndeny = 'org/*'\nendpoint = '{HUB}'\n")
    message = refuses(replace(CANDIDATE, endpoint="ftp://hub", trust_remote_code=True))
    assert "cannot be compared with the rules" in message


# -- previews ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "changes", "flag", "rule", "asked"), PRECEDENCE.values(), ids=PRECEDENCE)
def test_a_preview_says_what_admit_does(
    policy_file: Path, text: str, changes: dict[str, object], flag: bool, rule: str | None, asked: bool
):
    policy_file.write_text(f"schema = 1\n{text}")
    seen = preview(replace(CANDIDATE, **changes))
    if asked:
        assert seen.verdict == "publisher"
    elif rule is None:
        assert seen.verdict == "refused"
        assert seen.reason == refuses(replace(CANDIDATE, **changes))
    else:
        assert (seen.verdict, seen.reason[: len(rule)]) == ("admitted", rule)


def test_admissions_are_values():
    assert Admission("rule") == Admission("rule", ())
    assert len({CANDIDATE, replace(CANDIDATE), replace(CANDIDATE, version="1.0.0")}) == 2
