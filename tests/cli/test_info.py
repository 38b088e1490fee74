"""`kernels-hub info`: repositories in every form, and what is broken about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

DOUBLE = {
    "name": "Double",
    "signature": "x, *, times: int=2",
    "summary": "Twice its input.",
    "flags": {"can_torch_compile": True, "has_backward": "TRAINS"},
}


def _json(run: Run, path: Path) -> dict:
    result = run("info", path, "--json")
    assert (result.code, result.err) == (0, "")
    return json.loads(result.out)


def test_a_source_repository(run: Run, source_repository: Path):
    found = _json(run, source_repository)
    assert (found["name"], found["version"], found["license"]) == ("doubling", "0.3.1", "Apache-2.0")
    assert (found["form"], found["summary"]) == ("source", "Doubles what it is given.")
    assert found["layers"] == [DOUBLE]
    assert found["functions"] == [
        {"name": "double", "signature": "x, out=None", "summary": "x + x.", "flags": {}}
    ]
    assert [variant["name"] for variant in found["variants"]] == ["torch-cpu", "torch-cuda"]
    assert [variant["python_depends"] for variant in found["variants"]] == [[], ["triton"]]
    assert found["variants"][0]["files"] == 3
    assert found["variants"][0]["digest"] is None


@pytest.mark.parametrize("inside", ["", "build", "build/torch-cpu"])
def test_a_built_repository(inside: str, run: Run, built_repository: Path):
    found = _json(run, built_repository / inside)
    assert (found["form"], found["name"], found["version"]) == ("built", "doubling", "0.3.1")
    assert found["layers"] == [DOUBLE]
    names = ["torch-cpu"] if inside == "build/torch-cpu" else ["torch-cpu", "torch-cuda"]
    assert [variant["name"] for variant in found["variants"]] == names
    assert {variant["digest"] for variant in found["variants"]} == {"sha256"}
    assert all(variant["id"].startswith("doubling_") for variant in found["variants"])


def test_a_repository_of_hf_whose_metadata_names_no_layers(run: Run, built_repository: Path):
    for file in built_repository.rglob("metadata.json"):
        document = json.loads(file.read_text())
        del document["kernels-hub"], document["digest"]
        file.write_text(json.dumps(document))
    found = _json(run, built_repository)
    assert found["version"] == "0"
    assert [layer["name"] for layer in found["layers"]] == ["Double", "Unlisted"]


def test_folders_beside_the_variants_are_passed_over(run: Run, built_repository: Path):
    (built_repository / "build" / "notes").mkdir()
    assert len(_json(run, built_repository)["variants"]) == 2


def test_text(run: Run, source_repository: Path):
    out = run("info", source_repository).out
    assert "version  0.3.1" in out
    assert "  Double(x, *, times: int=2)  [can_torch_compile, has_backward=TRAINS]\n" in out
    assert "torch-cuda" in out
    assert "needs triton" in out


def test_code_that_does_not_parse_is_still_described(run: Run, source_repository: Path):
    (source_repository / "package" / "layers.py").write_text("def (")
    (layer,) = _json(run, source_repository)["layers"]
    assert (layer["name"], layer["signature"]) == ("Double", "…")


def _corrupt(file: str, text: str):
    def corrupt(repository: Path) -> None:
        (repository / file).write_text(text)

    return corrupt


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("build/torch-cpu/metadata.json", "{", "is not JSON"),
        ("build/torch-cpu/metadata.json", '{"name": 3}', "key 'name': expected a string, got 3"),
        ("build/torch-cpu/layers.py", "x = 1\n", "does not match the digest"),
    ],
)
def test_a_corrupt_file(file: str, text: str, expected: str, run: Run, built_repository: Path):
    (built_repository / file).write_text(text)
    result = run("info", built_repository)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"kernels-hub: {built_repository / 'build' / 'torch-cpu'}")
    assert expected in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[kernel", "is not TOML"),
        ("[kernel]\nname = 'x'\n", "the table [backends] is missing"),
        ("[kernel]\nnmae = 'x'\n[backends]\n", "unknown key 'nmae'"),
    ],
)
def test_a_corrupt_manifest(text: str, expected: str, run: Run, source_repository: Path):
    (source_repository / "kernel.toml").write_text(text)
    result = run("info", source_repository)
    assert (result.code, result.out) == (1, "")
    assert str(source_repository / "kernel.toml") in result.err
    assert expected in result.err


@pytest.mark.parametrize(
    ("name", "expected"), [("file", "it is a file, not a folder"), ("empty", "it holds no folders")]
)
def test_not_a_repository(name: str, expected: str, run: Run, tmp_path: Path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    result = run("info", tmp_path / name)
    assert (result.code, result.out) == (1, "")
    assert expected in result.err


def _state(folder: Path, provenance: dict) -> None:
    for file in folder.rglob("metadata.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"provenance": provenance}))


def test_provenance(run: Run, built_repository: Path):
    found = run("info", built_repository).out
    assert "provenance\n  built by  kernels-hub " in found
    row = {"name": "model\x1b[31m.onnx\n", "sha256": "0" * 64}
    _state(built_repository, {"kernels-hub": {"compiled": {"inputs": [row]}}})
    out = run("info", built_repository).out
    assert f"  input  model\\x1b[31m.onnx\\n sha256 {'0' * 64}\n" in out
    assert out.count("\nprovenance") == 1  # once for both variants
    _state(built_repository / "build" / "torch-cpu", {"kernel-builder": {"version": "0.17"}})
    out = run("info", built_repository).out
    assert "provenance of torch-cpu\n  built by  0.17\nprovenance of torch-cuda\n" in out
    assert _json(run, built_repository)["variants"][0]["provenance"] == {
        "kernel-builder": {"version": "0.17"}
    }


def test_much_provenance_is_cut(run: Run, built_repository: Path):
    rows = [{"name": f"input {n}", "sha256": "0" * 64} for n in range(1000)]
    _state(built_repository, {"kernels-hub": {"compiled": {"inputs": rows}}})
    out = run("info", built_repository).out
    assert "input 39 " in out
    assert out.endswith("  and 960 lines more: see --json\n")


def test_wrong_provenance(run: Run, built_repository: Path):
    _state(built_repository, {"kernel-builder": {"version": "x" * (1 << 20)}})
    result = run("info", built_repository)
    assert (result.code, result.out) == (1, "")
    assert "key 'provenance': Expected `str` of length <= 1000" in result.err
    assert result.err.count("\n") == 1
