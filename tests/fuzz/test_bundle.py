"""Bundles, as archives and as the index inside: unpacked as they say, or refused, and nothing is left behind."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import random
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kernels_hub.errors import MetadataError, TrustError
from kernels_hub.hub.bundle import read_bundle
from kernels_hub.hub.bundle_index import parse_index
from tests.fuzz.harness import budget, run
from tests.fuzz.mutations import mutate_bytes, mutate_json

A, B = "a" * 40, "b" * 40
CODE = [b"VALUE = 1\n", b"", bytes(range(256)) * 5]
SHA256 = [hashlib.sha256(one).hexdigest() for one in CODE]


def row(repository: str, commit: str, **changes: Any) -> dict[str, Any]:
    files = {
        f"build/torch-cpu/{name}": {"size": len(code), "blob": None, "sha256": sha256}
        for name, code, sha256 in zip(("__init__.py", "layers.py", "native/x.so"), CODE, SHA256, strict=True)
    }
    tree = {"commit": commit, "partial": False, "files": files}
    refs = {
        "branches": {"main": commit, "v1": commit},
        "tags": {"v1.0.0": commit},
        "yanked": {"0.1.0": "bad"},
    }
    return {"repository": repository, "type": "kernel", **refs, "tree": tree, **changes}


def index(*rows: dict[str, Any]) -> bytes:
    return json.dumps({"format": 1, "repositories": rows}).encode()


SEEDS = [index(), index(row("org/x", A)), index(row("org/x", A), row("org/y", B, type="model", tags={}))]


def archive(content: bytes) -> bytes:
    members = {"bundle.json": content} | {
        f"blobs/{sha256}": code for sha256, code in zip(SHA256, CODE, strict=True)
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def test_variants_of_the_index() -> None:
    source = Path("kernels.bundle")
    run(
        "bundle",
        SEEDS,
        mutate_json,
        lambda data: parse_index(data, source, 1 << 20),
        (MetadataError,),
        count=budget(),
    )


def test_variants_of_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most have an index that was changed, the others other bytes in the archive."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    numbers = itertools.count()

    def mutate(data: bytes, chance: random.Random) -> bytes:
        if (drawn := chance.random()) < 0.15:
            return archive(data)
        if drawn < 0.85:
            return archive(mutate_json(data, chance))
        return mutate_bytes(archive(data), chance)

    def parse(data: bytes) -> None:
        root = tmp_path / "caches" / str(next(numbers))
        (tmp_path / "x.bundle").write_bytes(data)
        try:
            items = read_bundle(tmp_path / "x.bundle", root, trust_remote_code=True)
        except Exception:
            assert not [path for path in root.rglob("*") if path.is_file()]
            raise
        finally:
            outside = {path.name for path in tmp_path.iterdir()} - {"caches", "x.bundle", "config"}
            assert not outside
        for item in items:
            for file in item.tree.files.values():
                assert file.check(item.place.path(item.tree.commit, file)) == file.sha256
        shutil.rmtree(root, ignore_errors=True)

    run("bundle_archive", SEEDS, mutate, parse, (MetadataError, TrustError), count=budget(150, 20_000))
