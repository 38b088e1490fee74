"""What the tests of trust and signing share: a small variant, keys that are the same in every run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kernels_hub.repository.digest import compute_digest, list_files
from kernels_hub.repository.metadata import METADATA_FILE, Metadata
from kernels_hub.trust.decision import RemoteCode
from kernels_hub.trust.keys import PublicKey, SigningKey

HUB = "https://hub.example.org"
CANDIDATE = RemoteCode("org/doubling", "kernel", "0" * 40, HUB)

FILES = {
    "__init__.py": b"raise RuntimeError('imported')\n",
    "layers.py": b"class Double: ...\n",
    "native/double.so": bytes(range(256)),
    "empty.py": b"",
}


def key(name: str) -> SigningKey:
    """The key of that name."""
    private = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())
    return SigningKey(PublicKey(private.public_key().public_bytes_raw(), name), private)


def make_variant(
    folder: Path, *, name: str = "doubling", release: str | None = "1.2.0", algorithm: str = "sha256"
) -> Path:
    """A built variant, `folder`, of a kernel in version 1.2.0."""
    for inside, content in FILES.items():
        (folder / inside).parent.mkdir(parents=True, exist_ok=True)
        (folder / inside).write_bytes(content)
    metadata = Metadata(name, id=f"{name}_1", version=1, license="MIT", release=release, backend="cpu")
    relist(folder, metadata, algorithm)
    return folder


def relist(folder: Path, metadata: Metadata, algorithm: str = "sha256") -> None:
    """Write a metadata.json that lists the files as they are."""
    files = {
        inside: path for inside, path in list_files(folder).items() if not inside.startswith(METADATA_FILE)
    }
    text = replace(metadata, digest=compute_digest(files, algorithm)).to_json()
    (folder / METADATA_FILE).write_text(text)


def edit_metadata(folder: Path, **changes: object) -> None:
    """Change keys of a metadata.json; None removes one."""
    path = folder / METADATA_FILE
    document = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in document.items() if value is not None}))
