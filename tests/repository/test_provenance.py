"""Provenance: what a build says of itself, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernels_hub.errors import MetadataError
from kernels_hub.repository.build import build_repository
from kernels_hub.repository.git_state import GitState
from kernels_hub.repository.metadata import read_metadata
from kernels_hub.repository.provenance import (
    PROVENANCE_FILE,
    Comparison,
    CompiledFrom,
    InputDigest,
    SourceState,
    equal_but_for_provenance,
    parse_provenance,
    provenance_of,
    read_compiled_from,
)
from kernels_hub.version import __version__
from tests.hub.publisher import write_source
from tests.repository.test_git_state import commit, git

COMPILED = CompiledFrom(
    builder={"kernels-hub": "0.1.0", "torch": "2.15.0", "compiler": "g++ 12.2.0"},
    source=SourceState(commit="a" * 40, dirty=True),
    inputs=(InputDigest("model.onnx", "0" * 64), InputDigest("weights", "1" * 64)),
    verified=(
        Comparison("MLP", 1e-4, 1.2e-7, "passed", seed=1, sizes={"batch": 3}, dtype="float32"),
        Comparison("the reference evaluator", 1e-4, 0.0, "passed"),
    ),
)


def test_what_is_written_is_read_again(tmp_path: Path):
    (tmp_path / PROVENANCE_FILE).write_text(COMPILED.to_json())
    assert read_compiled_from(tmp_path) == COMPILED
    stated = json.loads(json.dumps(provenance_of(GitState("b" * 40, dirty=False), COMPILED)))
    read = parse_provenance(stated, tmp_path)
    assert read.compiled == COMPILED
    assert read.kernel == SourceState(commit="b" * 40, dirty=False)
    assert read.rows() == [
        ("built by", f"kernels-hub {__version__}"),
        ("sources", f"commit {'b' * 40} (clean)"),
        ("compiled by", "kernels-hub 0.1.0, torch 2.15.0, g++ 12.2.0"),
        ("model", f"commit {'a' * 40} (dirty: the sources differ from it)"),
        ("input", f"model.onnx sha256 {'0' * 64}"),
        ("input", f"weights sha256 {'1' * 64}"),
        ("verified", "MLP: error 1.2e-07, tolerance 1e-04, passed (float32, batch = 3, seed 1)"),
        (
            "verified",
            "the reference evaluator: error 0.0e+00, tolerance 1e-04, passed (the only sizes, seed 0)",
        ),
    ]
    assert read_compiled_from(tmp_path / "nowhere") is None


def test_what_others_write_is_read(tmp_path: Path):
    of_hugging_face = {
        "kernel-builder": {"version": "0.17.0", "sha": "c" * 40, "dirty": False},
        "kernel": {"sha": "d" * 40, "dirty": True},
        "of the future": [1],
    }
    assert parse_provenance(of_hugging_face, tmp_path).rows() == [
        ("built by", "0.17.0"),
        ("sources", f"commit {'d' * 40} (dirty: the sources differ from it)"),
    ]
    assert parse_provenance(None, tmp_path).rows() == []


def test_a_build_states_its_commit(tmp_path: Path):
    kernels = pytest.importorskip("kernels._rust", reason="needs kernels, of Hugging Face")
    source = write_source(tmp_path / "scale")
    git(tmp_path, "init", "-q", str(source))
    first = commit(source)
    (source / PROVENANCE_FILE).write_text(COMPILED.to_json())
    for dirty in (False, True):
        if dirty:
            (source / "package" / "layers.py").write_text(
                (source / "package" / "layers.py").read_text() + "\n"
            )
        (folder,) = build_repository(source, tmp_path / "out")
        stated = parse_provenance(read_metadata(folder).provenance, folder)
        assert stated.kernel == SourceState(commit=first, dirty=dirty)
        assert stated.compiled == COMPILED
        peer = kernels.Metadata.read_from_file(folder / "metadata.json").provenance
        assert (peer.kernel.commit, peer.kernel.dirty, peer.dirty) == (first, dirty, dirty)


def test_the_id_is_of_the_content_alone(tmp_path: Path):
    source = write_source(tmp_path / "scale")
    (before,) = build_repository(source, tmp_path / "before")
    git(tmp_path, "init", "-q", str(source))
    commit(source)
    (after,) = build_repository(source, tmp_path / "after")
    one, other = ((folder / "metadata.json").read_bytes() for folder in (before, after))
    assert one != other
    assert read_metadata(before).id == read_metadata(after).id
    assert equal_but_for_provenance(one, other)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (b'{"a": 1, "provenance": {"x": 1}}', b'{"a": 1}', True),
        (b'{"a": 1, "provenance": {"x": 1}}', b'{"a": 2, "provenance": {"x": 1}}', False),
        (b'{"a": 1}', b"{", False),
        (b"[]", b"[]", False),
        (b"[" * 100_000, b"{}", False),
    ],
)
def test_equal_but_for_provenance(one: bytes, other: bytes, equal: bool):
    assert equal_but_for_provenance(one, other) is equal


def _compiled(**changed: object) -> dict[str, object]:
    return {"kernels-hub": {"compiled": json.loads(COMPILED.to_json()) | changed}}


_ROW = {"against": "x", "tolerance": 1e-4, "error": 1e-7, "result": "passed"}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"kernel": "x"}, "got `str` - at `$.kernel`"),
        ({"kernel": {"commit": "--upload-pack=x"}}, "$.kernel.commit"),
        ({"kernel-builder": {"version": "x" * (1 << 20)}}, "length <= 1000"),
        (_compiled(builder=[]), "$.kernels-hub.compiled.builder"),
        (_compiled(builder={str(n): "" for n in range(100)}), "length <= 64"),
        (_compiled(inputs=[{"name": "x", "sha256": "0"}]), "sha256"),
        (_compiled(inputs=[{"name": "x" * 2000, "sha256": "0" * 64}]), "length <= 1000"),
        (_compiled(verified=[_ROW | {"error": -1.0}]), "$.kernels-hub.compiled.verified[0].error"),
        (_compiled(verified=[_ROW | {"error": float("nan")}]), "$.kernels-hub.compiled.verified[0].error"),
        (_compiled(verified=[_ROW | {"error": "small"}]), "$.kernels-hub.compiled.verified[0].error"),
        (_compiled(verified=[_ROW] * 2000), "length <= 1024"),
    ],
)
def test_wrong_values_are_refused(document: dict[str, object], expected: str):
    with pytest.raises(MetadataError) as caught:
        parse_provenance(document, Path("metadata.json"))
    assert str(caught.value).startswith("metadata.json: key 'provenance': ")
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("text", ["[]", "{", '{"builder": 3}', " " * (1 << 20), "[" * 100_000])
def test_a_bad_file_is_refused(text: str, tmp_path: Path):
    source = write_source(tmp_path / "scale")
    (source / PROVENANCE_FILE).write_text(text)
    with pytest.raises(MetadataError) as caught:
        build_repository(source, tmp_path / "out")
    assert str(source / PROVENANCE_FILE) in str(caught.value)
    assert not (tmp_path / "out" / "build").exists()
