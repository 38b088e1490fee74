"""Signing keys: made once, readable by their owner only, and never another than the file says."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_hub.errors import TrustError
from kernels_hub.trust.keys import (
    KEY_PASSPHRASE,
    KEYS_FOLDER,
    PublicKey,
    keys_folder,
    list_keys,
    load_signing_key,
    new_key,
    public_key,
)
from tests.hub.trust_cases import key


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(KEYS_FOLDER, raising=False)
    monkeypatch.delenv(KEY_PASSPHRASE, raising=False)


def test_a_new_key_signs_and_verifies(tmp_path: Path):
    made = new_key("alice")
    assert made.path == tmp_path / "config" / "kernels_hub" / "keys" / "alice.pem"
    loaded = load_signing_key("alice")
    assert loaded.public == made.public == public_key("alice") == load_signing_key(made.path).public
    assert loaded.public.comment == "alice"
    signature = loaded.sign(b"message")
    assert loaded.public.verifies(signature, b"message")
    assert not loaded.public.verifies(signature, b"massage")
    assert not loaded.public.verifies(signature[:-1], b"message")
    assert not new_key("bob").public.verifies(signature, b"message")
    assert [stored.name for stored in list_keys()] == ["alice", "bob"]


def test_where_keys_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(KEYS_FOLDER, str(tmp_path / "elsewhere"))
    assert new_key("alice").path == tmp_path / "elsewhere" / "alice.pem"
    monkeypatch.delenv(KEYS_FOLDER)
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert keys_folder() == tmp_path / "home" / ".config" / "kernels_hub" / "keys"
    assert list_keys() == []


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")
def test_only_the_owner_reads_a_key():
    made = new_key("alice")
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.path.parent.stat().st_mode) == 0o700
    for mode in (0o640, 0o604, 0o660, 0o606, 0o622):
        made.path.chmod(mode)
        for use in (load_signing_key, public_key, lambda _: list_keys()):
            with pytest.raises(TrustError, match=f"^the key .* by others .mode {mode:04o}.*chmod 600"):
                use("alice")
    made.path.chmod(0o400)
    assert load_signing_key("alice").public == made.public


def test_an_existing_key_is_never_replaced():
    before = new_key("alice").path.read_bytes()
    with pytest.raises(TrustError, match="there is a key at .*alice.pem already"):
        new_key("alice")
    assert keys_folder().joinpath("alice.pem").read_bytes() == before
    assert [path.name for path in keys_folder().iterdir()] == ["alice.pem"]


def test_one_of_many_at_once_makes_the_key(tmp_path: Path):
    code = "from kernels_hub.trust.keys import new_key\nprint(new_key('alice').public.id)"
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    made = [run.communicate()[0].strip() for run in runs]
    (winner,) = [one for one in made if one]
    assert public_key("alice").id == winner == load_signing_key("alice").public.id
    assert [path.name for path in keys_folder().iterdir()] == ["alice.pem"]


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".hidden", "a b", "-a", "ä", "a" * 65, "a\n"])
def test_names_that_are_no_file_names(name: str):
    with pytest.raises(TrustError, match="is no name for a key"):
        new_key(name)
    assert not keys_folder().exists()


# -- passphrases ------------------------------------------------------------------------------------


def test_an_encrypted_key(monkeypatch: pytest.MonkeyPatch):
    made = new_key("alice", "open sesame")
    assert b"ENCRYPTED" in made.path.read_bytes()
    assert public_key("alice") == made.public  # without the passphrase
    assert load_signing_key("alice", lambda: "open sesame").public == made.public
    with pytest.raises(TrustError, match="the passphrase is wrong"):
        load_signing_key("alice", lambda: "sesame")
    monkeypatch.setenv(KEY_PASSPHRASE, "open sesame")
    assert load_signing_key("alice").public == made.public
    monkeypatch.setenv(KEY_PASSPHRASE, "no")
    with pytest.raises(TrustError, match="the passphrase is wrong"):
        load_signing_key("alice", lambda: "open sesame")


def test_nobody_can_be_asked(monkeypatch: pytest.MonkeyPatch):
    new_key("alice", "open sesame")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(TrustError, match=f"is encrypted; set {KEY_PASSPHRASE}"):
        load_signing_key("alice")


def test_an_empty_passphrase_is_no_passphrase():
    with pytest.raises(TrustError, match="is empty"):
        new_key("alice", "")
    assert list_keys() == []


def test_a_passphrase_is_not_asked_for_without_need():
    new_key("alice")
    assert load_signing_key("alice", lambda: pytest.fail("asked")).public.comment == "alice"


# -- files of others --------------------------------------------------------------------------------


def test_a_key_of_another_tool(tmp_path: Path):
    """PKCS8 in PEM, as `openssl genpkey -algorithm ed25519` writes it."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    pem = key("alice").private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = tmp_path / "foreign.pem"
    path.touch(mode=0o600)
    path.write_bytes(pem)
    assert load_signing_key(path).public == key("alice").public
    assert load_signing_key(str(path)).public.comment == "foreign"
    assert public_key(path) == key("alice").public


@pytest.mark.parametrize("content", [b"", b"ed25519:AAAA", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
                                     b"-----BEGIN PRIVATE KEY-----\n" + b"A" * 100_000])  # fmt: skip
def test_files_that_are_no_keys(tmp_path: Path, content: bytes):
    path = tmp_path / "broken.pem"
    path.touch(mode=0o600)
    path.write_bytes(content)
    with pytest.raises(TrustError, match=r"broken\.pem"):
        load_signing_key(path)


def test_keys_of_another_kind(tmp_path: Path):
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    path = tmp_path / "curve.pem"
    path.touch(mode=0o600)
    path.write_bytes(
        generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    with pytest.raises(TrustError, match="is not an Ed25519 key"):
        load_signing_key(path)


def test_a_public_line_that_was_altered():
    made = new_key("alice")
    made.path.write_text(made.path.read_text().replace(made.public.id, key("mallory").public.id))
    with pytest.raises(TrustError, match="states a public key that is not its own"):
        load_signing_key("alice")


def test_a_key_that_is_not_there():
    new_key("alice")
    with pytest.raises(TrustError, match=r"no key at .*bob\.pem; keys here: alice; .* key new NAME"):
        load_signing_key("bob")


# -- public keys ------------------------------------------------------------------------------------


@given(raw=st.binary(min_size=32, max_size=32), comment=st.sampled_from(["", "alice", "Alice of Org, 2026"]))
def test_a_public_key_is_read_as_it_is_written(raw: bytes, comment: str):
    parsed = PublicKey.parse(f"  {PublicKey(raw, comment)}\n")
    assert (parsed.raw, parsed.comment) == (raw, comment)
    assert parsed == PublicKey(raw, "another")
    assert "\n" not in str(parsed)


@pytest.mark.parametrize(
    "text",
    ["", "ed25519:", "ed25519:AAAA", "rsa:" + "A" * 44, "ed25519:" + "!" * 44, "ed25519:" + "A" * 44,
     # the last character holds two bits that must be zero
     key("alice").public.id[:-2] + chr(ord(key("alice").public.id[-2]) + 1) + "=",
     key("alice").public.id + " two\nlines", key("alice").public.id + " " + "x" * 201, key("alice").public.id + " \x1b[31m"],
)  # fmt: skip
def test_texts_that_are_no_public_key(text: str):
    with pytest.raises(TrustError, match="public key|comment"):
        PublicKey.parse(text)


def test_importing_the_modules_is_light():
    code = (
        "import sys\nimport kernels_hub.trust.decision, kernels_hub.trust.keys, kernels_hub.trust.policy_edit\n"
        "heavy = {'cryptography', 'sigstore', 'torch', 'huggingface_hub', 'tomlkit', 'filelock'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
