"""metadata.json: everything that may be in it, everything that may be wrong, and HF's own parser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels._rust import Metadata as PeerMetadata

from kernels_hub.errors import KernelImportError, MetadataError, RepositoryNotFoundError
from kernels_hub.repository.backends import BACKENDS
from kernels_hub.repository.metadata import (
    Digest,
    KernelDependency,
    Metadata,
    check_name,
    check_python_depends,
    read_metadata,
)
from tests.fuzz.harness import budget

COMPLETE: dict[str, Any] = {
    "name": "flash-attention",
    "id": "_flash_attention_cuda_0123456",
    "version": 2,
    "license": "Apache-2.0",
    "upstream": "https://example.org/upstream",
    "source": "https://example.org/source",
    "python-depends": ["einops"],
    "kernel-depends": [{"repo-id": "a/b", "version": 1}, {"repo-id": "c/d", "revision": "main"}],
    "kernels-minver": "0.10.0",
    "backend": {"type": "cuda", "archs": ["8.0", "9.0a"]},
    "digest": {"algorithm": "sha256", "files": {"__init__.py": "aGVsbG8="}},
    "provenance": {"kernel-builder": {"version": "0.17.0"}},
    "a-key-of-the-future": [1, 2, 3],
    "kernels-hub": {
        "release": "2.1.0",
        "summary": "attention",
        "layers": ["Attention"],
        "functions": ["attention"],
        "python-depends": ["triton"],
    },
}

PARSED = Metadata(
    name="flash-attention",
    id="_flash_attention_cuda_0123456",
    version=2,
    license="Apache-2.0",
    upstream="https://example.org/upstream",
    source="https://example.org/source",
    python_depends=("einops", "triton"),
    kernel_depends=(KernelDependency("a/b", version=1), KernelDependency("c/d", revision="main")),
    kernels_minver="0.10.0",
    backend="cuda",
    archs=("8.0", "9.0a"),
    digest=Digest("sha256", {"__init__.py": "aGVsbG8="}),
    provenance={"kernel-builder": {"version": "0.17.0"}},
    release="2.1.0",
    summary="attention",
    layers=("Attention",),
    functions=("attention",),
)


def _write(folder: Path, document: object) -> Path:
    (folder / "metadata.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def test_a_complete_file(tmp_path: Path) -> None:
    assert read_metadata(_write(tmp_path, COMPLETE)) == PARSED
    assert PARSED.python_name == "flash_attention"
    hash(PARSED)


def test_only_the_name_is_needed(tmp_path: Path) -> None:
    assert read_metadata(_write(tmp_path, {"name": "relu"})) == Metadata("relu")


def test_null_is_absent(tmp_path: Path) -> None:
    assert read_metadata(_write(tmp_path, dict.fromkeys(COMPLETE) | {"name": "relu"})) == Metadata("relu")


def test_a_missing_name_or_file_takes_the_default(tmp_path: Path) -> None:
    assert read_metadata(tmp_path, "relu") == Metadata("relu")
    assert read_metadata(_write(tmp_path, {"version": 1}), "relu") == Metadata("relu", version=1)


def test_a_missing_file_without_default(tmp_path: Path) -> None:
    with pytest.raises(RepositoryNotFoundError, match=r"no metadata\.json in .*"):
        read_metadata(tmp_path)


NOT_JSON = {
    "nothing": b"",
    "text": b"relu",
    "truncated": b'{"name": ',
    "binary": b"\xff\xfe\x00\xd8",
    "deep": b"[" * 10**5,
}


@pytest.mark.parametrize("case", NOT_JSON)
def test_not_json(tmp_path: Path, case: str) -> None:
    (tmp_path / "metadata.json").write_bytes(NOT_JSON[case])
    with pytest.raises(MetadataError, match="is not JSON") as caught:
        read_metadata(tmp_path, "relu")
    assert isinstance(caught.value, ValueError)
    assert str(tmp_path / "metadata.json") in str(caught.value)
    assert caught.value.__cause__ is not None


def test_a_byte_order_mark_is_fine(tmp_path: Path) -> None:
    (tmp_path / "metadata.json").write_text('{"name": "relu"}', encoding="utf-8-sig")
    assert read_metadata(tmp_path) == Metadata("relu")


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "metadata.json").mkdir()
    with pytest.raises(MetadataError, match="cannot be read"):
        read_metadata(tmp_path)


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "name": ({"name": 3}, "'name'", "expected a string, got 3"),
    "no name": ({"name": ""}, "'name'", "expected the kernel's name"),
    "id": ({"id": ["x"]}, "'id'", 'expected a string, got ["x"]'),
    "version text": ({"version": "1.0"}, "'version'", 'expected an integer, got "1.0"'),
    "version bool": ({"version": True}, "'version'", "expected an integer, got true"),
    "version float": ({"version": 1.5}, "'version'", "expected an integer, got 1.5"),
    "version negative": ({"version": -1}, "'version'", "at least 0"),
    "license": ({"license": 1}, "'license'", "expected a string"),
    "python-depends": ({"python-depends": "einops"}, "'python-depends'", "expected an array"),
    "python-depends item": ({"python-depends": ["a", 1]}, "'python-depends[1]'", "expected a string, got 1"),
    "kernel-depends": ({"kernel-depends": {"a/b": 1}}, "'kernel-depends'", "expected an array"),
    "kernel-depends item": ({"kernel-depends": ["a/b"]}, "'kernel-depends[0]'", "expected an object"),
    "kernel-depends repo": (
        {"kernel-depends": [{"version": 1}]},
        "'kernel-depends[0].repo-id'",
        "expected 'org/name', got none",
    ),
    "kernel-depends neither": (
        {"kernel-depends": [{"repo-id": "a/b"}]},
        "'kernel-depends[0]'",
        "expected one of",
    ),
    "kernel-depends both": (
        {"kernel-depends": [{"repo-id": "a/b", "version": 1, "revision": "main"}]},
        "'kernel-depends[0]'",
        "expected one of 'version' and 'revision'",
    ),
    "minver": ({"kernels-minver": "new"}, "'kernels-minver'", "expected a version"),
    "backend": ({"backend": "cuda"}, "'backend'", "expected an object"),
    "backend type": ({"backend": {"type": 1}}, "'backend.type'", "expected a string"),
    "backend archs": ({"backend": {"type": "cuda", "archs": "9.0"}}, "'backend.archs'", "expected an array"),
    "digest": ({"digest": "abc"}, "'digest'", "expected an object"),
    "digest algorithm": (
        {"digest": {"algorithm": "md5", "files": {}}},
        "'digest.algorithm'",
        "sha256, sha512",
    ),
    "digest files": ({"digest": {"algorithm": "sha256"}}, "'digest.files'", "got none"),
    "digest file": (
        {"digest": {"algorithm": "sha256", "files": {"a.py": 1}}},
        "'digest.files.a.py'",
        "expected a string, got 1",
    ),
    "provenance": ({"provenance": []}, "'provenance'", "expected an object"),
    "extension": ({"kernels-hub": {"layers": "SiLU"}}, "'kernels-hub.layers'", "expected an array"),
    "long value": ({"id": ["x" * 1000]}, "'id'", "..."),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_values_name_file_and_key(tmp_path: Path, case: str) -> None:
    change, key, problem = WRONG[case]
    with pytest.raises(MetadataError) as caught:
        read_metadata(_write(tmp_path, {"name": "relu"} | change))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'metadata.json'}: key {key}: ")
    assert problem in message
    assert len(message) < len(str(tmp_path)) + 200


@pytest.mark.parametrize("document", [[], "relu", 3, None, True])
def test_not_an_object(tmp_path: Path, document: object) -> None:
    with pytest.raises(MetadataError, match="expected an object, got"):
        read_metadata(_write(tmp_path, document))


@pytest.mark.parametrize(("name", "expected"), [("relu", "relu"), ("flash-attention", "flash_attention")])
def test_check_name(tmp_path: Path, name: str, expected: str) -> None:
    check_name(Metadata(name), expected, tmp_path)
    with pytest.raises(MetadataError, match=f"names the kernel '{name}', expected 'other'"):
        check_name(Metadata(name), "other", tmp_path)


def test_check_python_depends() -> None:
    check_python_depends(Metadata("relu", python_depends=("packaging", "onednn")))
    with pytest.raises(KernelImportError) as caught:
        check_python_depends(Metadata("relu", python_depends=("packaging", "nki", "no-such-package")))
    assert "pip install nki no-such-package" in str(caught.value)
    assert "packaging" not in str(caught.value)


# -- writing ----------------------------------------------------------------------------------------

texts = st.text(min_size=1, max_size=8)
repositories = st.from_regex(r"[a-z0-9]{1,4}/[a-z0-9]{1,4}", fullmatch=True)
paths = st.from_regex(r"[a-z]{1,4}(/[a-z]{1,4})?", fullmatch=True)
names = st.sampled_from(["einops", "triton", "nki", "tvm-ffi", "own-package"])
metadatas = st.builds(
    Metadata,
    name=st.from_regex(r"[a-z][-a-z0-9]{0,6}[a-z0-9]", fullmatch=True),
    id=texts,
    version=st.integers(0, 2**31),
    license=texts,
    upstream=st.none() | st.just("https://example.org/upstream"),
    source=st.none() | st.just("https://example.org/source"),
    python_depends=st.lists(names, unique=True).map(tuple),
    kernel_depends=st.lists(
        st.builds(KernelDependency, repositories, version=st.integers(0, 9))
        | st.builds(KernelDependency, repositories, revision=texts),
        max_size=2,
    ).map(tuple),
    kernels_minver=st.none() | st.just("0.10.0"),
    backend=st.sampled_from(sorted(BACKENDS)),
    archs=st.lists(texts, max_size=2).map(tuple),
    digest=st.none()
    | st.builds(Digest, st.sampled_from(["sha256", "sha512"]), st.dictionaries(paths, texts, max_size=2)),
    release=st.none() | texts,
    summary=st.none() | texts,
    layers=st.lists(texts, max_size=2).map(tuple),
    functions=st.lists(texts, max_size=2).map(tuple),
)


@settings(max_examples=budget(30, 100), deadline=None)
@given(metadatas)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, metadata: Metadata) -> None:
    folder = tmp_path_factory.mktemp("metadata")
    (folder / "metadata.json").write_text(metadata.to_json(), encoding="utf-8")
    again = read_metadata(folder)
    assert sorted(again.python_depends) == sorted(metadata.python_depends)
    assert again.to_json() == metadata.to_json()


@settings(deadline=None)
@given(metadatas)
def test_hugging_face_reads_what_is_written(metadata: Metadata) -> None:
    theirs = PeerMetadata.from_bytes(metadata.to_json().encode())
    assert (str(theirs.name), theirs.id, theirs.version) == (metadata.name, metadata.id, metadata.version)
    assert theirs.license == metadata.license
    assert str(theirs.backend.backend_type).lower() == BACKENDS[metadata.backend or ""].metadata_type
    assert [depends.repo_id for depends in theirs.kernel_depends] == [
        d.repo_id for d in metadata.kernel_depends
    ]
    if metadata.digest is not None:
        assert theirs.digest is not None
        assert theirs.digest.files == metadata.digest.files


def test_dependencies_that_hugging_face_refuses_go_elsewhere() -> None:
    document = json.loads(
        Metadata("relu", python_depends=("triton", "einops", "nki"), backend="cuda").to_json()
    )
    assert document["python-depends"] == ["einops"]
    assert document["kernels-hub"]["python-depends"] == ["triton", "nki"]
