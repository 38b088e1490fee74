"""Provenance of a variant: what it was built from and by, and how it was verified.

It stands under `provenance` of metadata.json, so a signature covers it. What Hugging Face's `kernels` knows has that
library's spelling, and the rest its own key:

    "kernel-builder": {"version": "kernels-hub 0.1.0"}
    "kernel": {"commit": "9fceb02…", "dirty": false}         the sources, where they lie in a git work tree
    "kernels-hub": {"compiled": {…}}                         the content of provenance.json, of a compiled layer

`kernels-hub compile` writes provenance.json beside kernel.toml: versions of what compiled the layer, digests of the
ONNX file, or of the module's sources and weights, and each comparison with its tolerance and error. Nothing in it tells
a time or a machine, and equal inputs give equal bytes. Values are what a publisher states: a signature says who stated
them, not that they are true.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from kernels_hub.errors import IntegrityError, MetadataError
from kernels_hub.parsing import Sha256, convert, parse_json
from kernels_hub.repository.git_state import GitState
from kernels_hub.repository.variant_files import read_bounded
from kernels_hub.version import __version__

PROVENANCE_FILE = "provenance.json"
MOST_BYTES = 1 << 18
"""Of a provenance.json."""

_ShortText = Annotated[str, Meta(max_length=1000)]
_Commit = Annotated[str, Meta(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})\Z", max_length=64)]
_Error = Annotated[float, Meta(ge=0.0)]


class SourceState(Struct, frozen=True, rename={"old_commit": "sha"}):
    """A commit, and whether what was built differs from it."""

    commit: _Commit | None = None
    old_commit: _Commit | None = None
    """As older builders of Hugging Face spell it."""
    dirty: bool | None = None

    def __str__(self) -> str:
        commit = self.commit or self.old_commit
        state = {True: "dirty: the sources differ from it", False: "clean", None: ""}[self.dirty]
        return f"{commit or 'unknown commit'}{f' ({state})' if state else ''}"


class InputDigest(Struct, frozen=True):
    """One thing that went in."""

    name: _ShortText
    sha256: Sha256


class Comparison(Struct, frozen=True, omit_defaults=True):
    """What a compiled layer gave, against something else on the same seeded inputs.

    error: the largest of any output, in units of its largest magnitude; result: how that was judged.
    """

    against: _ShortText
    tolerance: _Error
    error: _Error
    result: _ShortText
    seed: int = 0
    sizes: dict[_ShortText, int] = {}
    dtype: _ShortText = ""

    def __str__(self) -> str:
        sizes = [*([self.dtype] if self.dtype else []), *(f"{name} = {n}" for name, n in self.sizes.items())]
        inputs = f"{', '.join(sizes) or 'the only sizes'}, seed {self.seed}"
        return f"{self.against}: error {self.error:.1e}, tolerance {self.tolerance:.0e}, {self.result} ({inputs})"


class CompiledFrom(Struct, frozen=True, omit_defaults=True):
    """How a compiled layer was made: the content of provenance.json."""

    builder: Annotated[dict[_ShortText, _ShortText], Meta(max_length=64)] = {}
    """Name -> version of what compiled it."""
    source: SourceState | None = None
    """Of the ONNX file, or of the module's own source file."""
    inputs: Annotated[tuple[InputDigest, ...], Meta(max_length=1024)] = ()
    verified: Annotated[tuple[Comparison, ...], Meta(max_length=1024)] = ()

    def to_json(self) -> str:
        """The text of provenance.json: keys sorted, one spelling."""
        return json.dumps(msgspec.to_builtins(self), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


class Builder(Struct, frozen=True):
    """The program that built a variant."""

    version: _ShortText
    commit: _Commit | None = None
    old_commit: _Commit | None = msgspec.field(default=None, name="sha")
    dirty: bool | None = None


class _Own(Struct, frozen=True):
    compiled: CompiledFrom | None = None


class Provenance(Struct, frozen=True, rename={"kernel_builder": "kernel-builder", "own": "kernels-hub"}):
    """What `provenance` of metadata.json says, of this library or of Hugging Face's builder."""

    kernel_builder: Builder | None = None
    kernel: SourceState | None = None
    own: _Own = _Own()

    @property
    def compiled(self) -> CompiledFrom | None:
        """Of a layer that `kernels-hub compile` made."""
        return self.own.compiled

    def rows(self) -> list[tuple[str, str]]:
        """What it says, in words: the name and the value of each line."""
        rows = []
        if self.kernel_builder is not None:
            rows.append(("built by", self.kernel_builder.version))
        if self.kernel is not None:
            rows.append(("sources", f"commit {self.kernel}"))
        if (compiled := self.compiled) is not None:
            versions = ", ".join(
                version if name == "compiler" else f"{name} {version}"
                for name, version in compiled.builder.items()
            )
            rows += [("compiled by", versions)] if versions else []
            rows += [("model", f"commit {compiled.source}")] if compiled.source is not None else []
            rows += [("input", f"{each.name} sha256 {each.sha256}") for each in compiled.inputs]
            rows += [("verified", str(each)) for each in compiled.verified]
        return rows


def provenance_of(sources: GitState | None, compiled: CompiledFrom | None) -> dict[str, Any]:
    """The value of `provenance` in metadata.json."""
    found: dict[str, Any] = {"kernel-builder": {"version": f"kernels-hub {__version__}"}}
    if sources is not None:
        found["kernel"] = {"commit": sources.commit, "dirty": sources.dirty}
    return found if compiled is None else {**found, **compiled_provenance(compiled)}


def compiled_provenance(compiled: CompiledFrom) -> dict[str, Any]:
    """The part of `provenance` that says how a layer was compiled."""
    return {"kernels-hub": {"compiled": msgspec.to_builtins(compiled)}}


def parse_provenance(document: Mapping[str, Any] | None, where: Path) -> Provenance:
    """The `provenance` of a metadata.json.

    where: that file. Raises MetadataError for values of the wrong type, or of more than their length.
    """
    return convert(document or {}, Provenance, where=f"{where}: key 'provenance'")


def read_compiled_from(folder: Path) -> CompiledFrom | None:
    """The provenance.json of a repository in source form, None without one; raises MetadataError for a bad one."""
    path = folder / PROVENANCE_FILE
    try:
        content = read_bounded(path, MOST_BYTES)
    except IntegrityError as error:
        raise MetadataError(str(error)) from error
    if content is None:
        return None
    advice = "compile the layer again, or remove the file"
    return parse_json(content, CompiledFrom, where=str(path), most_bytes=MOST_BYTES, advice=advice)


def equal_but_for_provenance(content: bytes, other: bytes) -> bool:
    """Whether two files metadata.json say the same of everything but where the variant comes from."""
    try:
        documents = [json.loads(text) for text in (content, other)]
    except (ValueError, RecursionError):
        return False
    if not all(isinstance(document, dict) for document in documents):
        return False
    for document in documents:
        document.pop("provenance", None)
    return bool(documents[0] == documents[1])


__all__ = [
    "PROVENANCE_FILE",
    "Builder",
    "Comparison",
    "CompiledFrom",
    "InputDigest",
    "Provenance",
    "SourceState",
    "compiled_provenance",
    "equal_but_for_provenance",
    "parse_provenance",
    "provenance_of",
    "read_compiled_from",
]
