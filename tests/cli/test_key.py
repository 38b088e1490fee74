"""`kernels-hub key`: made once, listed without passphrases, exported as one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernels_hub.trust.keys import load_signing_key
from tests.cli.conftest import Run


@pytest.fixture(autouse=True)
def keys_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("KERNELS_HUB_KEYS", raising=False)
    monkeypatch.delenv("KERNELS_HUB_KEY_PASSPHRASE", raising=False)
    return tmp_path / "config" / "kernels_hub" / "keys"


def test_new_list_export(run: Run, keys_folder: Path):
    assert "no keys in" in run("key", "list").out
    made = run("key", "new", "alice")
    assert made.code == 0
    assert made.out == f"{load_signing_key('alice').public}\n"
    assert str(keys_folder / "alice.pem") in made.err
    exported = run("key", "export", "alice")
    assert (exported.code, exported.out) == (0, made.out)
    assert run("key", "export", keys_folder / "alice.pem").out == made.out
    listed = json.loads(run("key", "list", "--json").out)
    assert listed == [
        {
            "name": "alice",
            "public": made.out.strip(),
            "encrypted": False,
            "path": str(keys_folder / "alice.pem"),
        }
    ]
    assert made.out.split()[0] in run("key", "list").out


def test_a_passphrase_from_the_environment(run: Run, keys_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERNELS_HUB_KEY_PASSPHRASE", "open sesame")
    assert run("key", "new", "alice", "--passphrase").code == 0
    assert b"ENCRYPTED" in (keys_folder / "alice.pem").read_bytes()
    assert run("key", "new", "bob").code == 0
    assert b"ENCRYPTED" not in (keys_folder / "bob.pem").read_bytes()
    assert [key["encrypted"] for key in json.loads(run("key", "list", "--json").out)] == [True, False]


def test_a_passphrase_that_is_asked_for(run: Run, keys_folder: Path, monkeypatch: pytest.MonkeyPatch):
    answers = iter(["open sesame", "open sesame"])
    monkeypatch.setattr("typer.prompt", lambda *_, **options: next(answers) if options["hide_input"] else "")
    assert run("key", "new", "alice", "--passphrase").code == 0
    assert load_signing_key("alice", lambda: "open sesame")


def test_errors(run: Run, keys_folder: Path):
    run("key", "new", "alice")
    before = (keys_folder / "alice.pem").read_bytes()
    for arguments, problem in (
        (("new", "alice"), "already"),
        (("new", "a/b"), "is no name for a key"),
        (("export", "bob"), "keys here: alice"),
    ):
        result = run("key", *arguments)
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith("kernels-hub: ") and problem in result.err
    assert (keys_folder / "alice.pem").read_bytes() == before
