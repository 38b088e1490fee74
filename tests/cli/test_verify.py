"""`kernels-hub verify`: a built repository's signatures and files; imports nothing of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernels_hub.trust.signature import sign_variant
from tests.cli.conftest import Run
from tests.hub.trust_cases import key

ALICE, BOB = key("alice"), key("bob")


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("KERNELS_HUB_TRUST", "KERNELS_HUB_KEYS", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def signed(built_repository: Path) -> Path:
    for variant in (built_repository / "build").iterdir():
        sign_variant(variant, ALICE, repo_id="org/doubling")
    return built_repository


def test_a_signed_repository(run: Run, signed: Path):
    for path in (signed, signed / "build"):
        result = run("verify", path)
        assert (result.code, result.err) == (0, "")
        rows = [line.split(maxsplit=2) for line in result.out.splitlines()]
        assert [row[:2] for row in rows] == [["torch-cpu", "verified"], ["torch-cuda", "verified"]]
        assert rows[0][2] == f"4 files, signed by {ALICE.public.id} for org/doubling 0.3.1"
    assert run("verify", signed / "build" / "torch-cpu").code == 0


def test_json(run: Run, signed: Path):
    (signed / "build" / "torch-cuda" / "kernels.py").write_text("evil")
    result = run("verify", signed, "--json")
    assert result.code == 1
    found = json.loads(result.out)
    assert found["verified"] is False
    good, bad = found["variants"]
    assert good == {
        "variant": "torch-cpu",
        "verified": True,
        "signers": [ALICE.public.id],
        "repository": "org/doubling",
        "release": "0.3.1",
        "files": 4,
        "problem": None,
    }
    assert bad["verified"] is False and "kernels.py has other content" in bad["problem"]


def test_by_a_key(run: Run, signed: Path):
    assert run("verify", signed, "--key", ALICE.public.id).code == 0
    assert run("verify", signed, "--key", BOB.public.id, "--key", ALICE.public.id).code == 0
    refused = run("verify", signed, "--key", str(BOB.public))
    assert refused.code == 1
    assert refused.out.count("it lacks a signature by") == 2
    assert "is no public key" in run("verify", signed, "--key", "carol").err


def test_for_a_repository(run: Run, signed: Path):
    assert run("verify", signed, "--repo", "org/doubling").code == 0
    elsewhere = run("verify", signed, "--repo", "org/halving")
    assert elsewhere.code == 1
    assert "made for repository 'org/doubling', not 'org/halving'" in elsewhere.out
    run("trust", "add", BOB.public.id, "--for", "org/*")
    assert run("verify", signed, "--repo", "org/doubling").code == 1
    run("trust", "add", ALICE.public.id, "--for", "org/*")
    assert run("verify", signed, "--repo", "org/doubling").code == 0
    run("trust", "deny", "org/*")
    denied = run("verify", signed, "--repo", "org/doubling")
    assert (denied.code, denied.out) == (1, "")
    assert "denies it" in denied.err


def test_one_unsigned_variant_fails_it(run: Run, signed: Path):
    (signed / "build" / "torch-cuda" / "metadata.json.ed25519").unlink()
    result = run("verify", signed)
    assert result.code == 1
    assert [line.split()[:2] for line in result.out.splitlines()] == [
        ["torch-cpu", "verified"],
        ["torch-cuda", "REFUSED"],
    ]
    (signed / "build" / "torch-cuda" / "metadata.json").unlink()
    assert "no metadata.json" in run("verify", signed).out


def test_nothing_to_verify(run: Run, source_repository: Path, tmp_path: Path):
    (tmp_path / "empty" / "build").mkdir(parents=True)
    for path in (source_repository, tmp_path / "missing", tmp_path / "empty"):
        result = run("verify", path)
        assert (result.code, result.out) == (1, "")
        assert "no variants at" in result.err


def test_inside_a_variant(run: Run, signed: Path, monkeypatch: pytest.MonkeyPatch):
    """The folder's own name is part of what is signed, also where it is called "."."""
    monkeypatch.chdir(signed / "build" / "torch-cpu")
    result = run("verify", ".")
    assert (result.code, result.out.split()[0]) == (0, "torch-cpu")
