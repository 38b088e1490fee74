"""Ed25519 keys that sign variants: where they are kept, how they are read and written.

A public key is one line, `ed25519:<base64> comment`. A private key is a file of its own in the keys
folder, PKCS8 in PEM with the public key's line above it, readable by its owner only.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kernels_hub.errors import TrustError
from kernels_hub.files import write_atomically

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEYS_FOLDER = "KERNELS_HUB_KEYS"
"""Environment variable: the folder of private keys."""
KEY_PASSPHRASE = "KERNELS_HUB_KEY_PASSPHRASE"  # noqa: S105 (a variable's name)
"""Environment variable: the passphrase of private keys, where nobody can be asked."""

_PREFIX = "ed25519:"
_PUBLIC_LINE = "public: "
_SUFFIX = ".pem"
_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,63}", re.ASCII)
_MAX_COMMENT = 200
_MAX_FILE = 64 * 1024


@dataclass(frozen=True)
class PublicKey:
    """A public key. The comment is for people: keys with equal bytes are equal."""

    raw: bytes
    """32 bytes."""
    comment: str = field(default="", compare=False)

    @property
    def id(self) -> str:
        """`ed25519:<base64>`, without the comment."""
        return _PREFIX + base64.b64encode(self.raw).decode()

    def __str__(self) -> str:
        return f"{self.id} {self.comment}".rstrip()

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """A key from its line. Raises TrustError saying what is wrong with it."""
        key, _, comment = text.strip().partition(" ")
        if not key.startswith(_PREFIX):
            raise TrustError(f"expected a public key, 'ed25519:<base64> comment', got {_shown(text)}")
        try:
            raw = base64.b64decode(key.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError) as error:
            raise TrustError(f"the public key {_shown(key)} is not base64: {error}") from error
        if len(raw) != 32 or base64.b64encode(raw).decode() != key.removeprefix(_PREFIX):
            raise TrustError(f"the public key {_shown(key)} is not the base64 of 32 bytes")
        comment = comment.strip()
        if len(comment) > _MAX_COMMENT or not comment.isprintable():
            raise TrustError(
                f"the comment of {key} is too long, or not of printable characters: {_shown(comment)}"
            )
        return cls(raw, comment)

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether the signature is this key's over exactly these bytes."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True)
class SigningKey:
    """A private key, and the public one that belongs to it."""

    public: PublicKey
    private: Ed25519PrivateKey = field(repr=False, compare=False)

    def sign(self, message: bytes) -> bytes:
        """64 bytes, always the same for the same message."""
        return self.private.sign(message)


@dataclass(frozen=True)
class StoredKey:
    """What the keys folder says of a key, without its passphrase."""

    name: str
    path: Path
    public: PublicKey | None
    """None where the file does not say it, and only a passphrase would tell."""
    encrypted: bool


def config_folder() -> Path:
    """`$XDG_CONFIG_HOME/kernels_hub`, or `~/.config/kernels_hub`."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification: a path that is not absolute is to be ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".config") / "kernels_hub"  # noqa: PTH117


def keys_folder() -> Path:
    """Where private keys are kept."""
    named = os.environ.get(KEYS_FOLDER)
    return Path(named).expanduser() if named else config_folder() / "keys"


def new_key(name: str, passphrase: str | None = None) -> StoredKey:
    """Make a key pair and keep it in the keys folder.

    name: also the comment of the public key.
    passphrase: encrypts the file; None leaves it to the file's permissions.

    Raises TrustError for a name that is no file name or taken; an existing key is never replaced.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        KeySerializationEncryption,
        NoEncryption,
        PrivateFormat,
    )

    path = _key_path(name)
    if passphrase is not None and not passphrase:
        raise TrustError(f"the passphrase of key {name!r} is empty; give one, or make the key without")
    private = Ed25519PrivateKey.generate()
    public = PublicKey(private.public_key().public_bytes_raw(), name)
    encryption: KeySerializationEncryption = NoEncryption()
    if passphrase is not None:
        encryption = BestAvailableEncryption(passphrase.encode())
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
    _create(path, f"{_PUBLIC_LINE}{public}\n".encode() + pem)
    return StoredKey(name, path, public, passphrase is not None)


def list_keys() -> list[StoredKey]:
    """The keys in the keys folder, by name.

    Raises TrustError for a file there that is no key, or that others can read.
    """
    try:
        paths = sorted(path for path in keys_folder().iterdir() if path.suffix == _SUFFIX)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TrustError(f"the keys folder {keys_folder()} cannot be read: {error}") from error
    return [_stored(path) for path in paths]


def public_key(name_or_path: str | Path) -> PublicKey:
    """The public key of a stored key, without its passphrase.

    Raises TrustError when there is no such key, or it does not say its public key.
    """
    stored = _stored(_locate(name_or_path))
    if stored.public is None:
        raise TrustError(
            f"the key {stored.path} is encrypted and does not say its public key; sign something with it, "
            f"or add its line '{_PUBLIC_LINE}ed25519:…' above the first '-----'"
        )
    return stored.public


def load_signing_key(name_or_path: str | Path, passphrase: Callable[[], str] | None = None) -> SigningKey:
    """A private key, by its name in the keys folder or by the path of its file.

    passphrase: called once if the file is encrypted and `KERNELS_HUB_KEY_PASSPHRASE` is not set;
        None asks on the terminal.

    Raises TrustError when there is no such key, when it is not an Ed25519 key in PEM, when others
    may read its file, or when the passphrase is missing or wrong.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    path = _locate(name_or_path)
    content = _read_private(path)
    secret = _passphrase(path, passphrase) if _is_encrypted(content) else None
    try:
        private = load_pem_private_key(content, secret)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        wrong = "the passphrase is wrong, or it" if secret is not None else "it"
        raise TrustError(f"the key {path} cannot be used: {wrong} is not a private key in PEM") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise TrustError(f"the key {path} is not an Ed25519 key; make one with: kernels-hub key new NAME")
    raw = private.public_key().public_bytes_raw()
    stated = _stated_public_key(path, content)
    if stated is not None and stated.raw != raw:
        raise TrustError(f"the key {path} states a public key that is not its own; the file was altered")
    return SigningKey(PublicKey(raw, path.stem if stated is None else stated.comment), private)


# -- files ------------------------------------------------------------------------------------------


def _key_path(name: str) -> Path:
    if _NAME.fullmatch(name) is None:
        raise TrustError(
            f"{name!r} is no name for a key: expected up to 64 of A-Z, a-z, 0-9, '-', '_' and '.', "
            "the first a letter or digit"
        )
    return keys_folder() / f"{name}{_SUFFIX}"


def _locate(name_or_path: str | Path) -> Path:
    """A name is looked up in the keys folder; whatever has a separator or a suffix .pem is a path."""
    text = os.fspath(name_or_path)
    is_path = isinstance(name_or_path, Path) or "/" in text or os.sep in text or text.endswith(_SUFFIX)
    return Path(text).expanduser() if is_path else _key_path(text)


def _create(path: Path, content: bytes) -> None:
    """A new file that only its owner reads: whole or not at all, and never over another."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, content, mode=0o600, durable=True, overwrite=False)
    except FileExistsError as error:
        raise TrustError(f"there is a key at {path} already; choose another name, or remove it") from error
    except OSError as error:
        raise TrustError(f"the key cannot be written to {path}: {error}") from error


def _read_private(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise TrustError(f"the key {path} is not a file")
            if os.name == "posix" and status.st_mode & 0o077:
                raise TrustError(
                    f"the key {path} can be read or written by others (mode {stat.S_IMODE(status.st_mode):04o}); "
                    f"if it has been so on a shared machine, make a new one; else: chmod 600 {path}"
                )
            content = file.read(_MAX_FILE + 1)
    except FileNotFoundError as error:
        known = ", ".join(sorted(other.stem for other in keys_folder().glob(f"*{_SUFFIX}"))) or "none"
        raise TrustError(
            f"there is no key at {path}; keys here: {known}; make one with: kernels-hub key new NAME"
        ) from error
    except TrustError:
        raise  # which is an OSError
    except OSError as error:
        raise TrustError(f"the key {path} cannot be read: {error}") from error
    if len(content) > _MAX_FILE or b"-----BEGIN " not in content:
        raise TrustError(f"the key {path} is not a private key in PEM")
    return content


def _stored(path: Path) -> StoredKey:
    content = _read_private(path)
    encrypted = _is_encrypted(content)
    public = _stated_public_key(path, content)
    if public is None and not encrypted:
        public = load_signing_key(path).public
    return StoredKey(path.stem, path, public, encrypted)


def _is_encrypted(content: bytes) -> bool:
    return b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in content


def _stated_public_key(path: Path, content: bytes) -> PublicKey | None:
    header = content.partition(b"-----BEGIN ")[0].decode("utf-8", "replace")
    lines = [line for line in header.splitlines() if line.startswith(_PUBLIC_LINE)]
    if not lines:
        return None
    try:
        return PublicKey.parse(lines[0].removeprefix(_PUBLIC_LINE))
    except TrustError as error:
        raise TrustError(f"the key {path}: {error}") from error


def _passphrase(path: Path, ask: Callable[[], str] | None) -> bytes:
    if (known := os.environ.get(KEY_PASSPHRASE)) is not None:
        return known.encode()
    if ask is not None:
        return ask().encode()
    if not sys.stdin.isatty():
        raise TrustError(f"the key {path} is encrypted; set {KEY_PASSPHRASE} to its passphrase")
    from getpass import getpass

    return getpass(f"Passphrase of {path.stem}: ").encode()


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
