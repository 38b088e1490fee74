"""Small kernels put on a running Hub through its plain API: what the fetching tests fetch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kernels_hub.repository.digest import compute_digest, list_files
from kernels_hub.repository.metadata import KernelDependency, Metadata

if TYPE_CHECKING:
    from huggingface_hub import HfApi

LAYERS = """
from torch import nn

class Scale(nn.Module):
    def forward(self, x):
        return x * {value}
"""


def write_variant(
    folder: Path,
    value: object = 1,
    *,
    name: str = "small",
    init: str = "",
    files: Mapping[str, str] | None = None,
    depends: tuple[KernelDependency, ...] = (),
    digest: bool = True,
) -> Path:
    """A variant whose `VALUE` and layer `Scale` tell which one it is."""
    sources = {
        "__init__.py": f"from . import layers\nVALUE = {value!r}\n{init}",
        "layers.py": LAYERS.format(value=value if isinstance(value, (int, float)) else 1),
        **(files or {}),
    }
    for inside, text in sources.items():
        path = folder / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    identity = f"{name}_cpu_{hashlib.sha256(repr(sources).encode()).hexdigest()[:12]}"
    metadata = Metadata(name, identity, 1, license="Apache-2.0", backend="cpu", kernel_depends=depends)
    if digest:
        metadata = replace(metadata, digest=compute_digest(list_files(folder)))
    (folder / "metadata.json").write_text(metadata.to_json())
    return folder


def put(
    api: HfApi,
    repo_id: str,
    build: Path,
    *,
    tag: str | None = None,
    branch: str | None = None,
    repo_type: str = "kernel",
    extra: Mapping[str, str] | None = None,
) -> str:
    """Commit the variants below `build` to `main`, and put a tag and a branch there. Returns the commit."""
    from huggingface_hub import CommitOperationAdd

    api.create_repo(repo_id, repo_type=repo_type, exist_ok=True)
    operations = [
        CommitOperationAdd(f"build/{inside}", path.read_bytes()) for inside, path in list_files(build).items()
    ]
    operations += [CommitOperationAdd(path, text.encode()) for path, text in (extra or {}).items()]
    commit = str(api.create_commit(repo_id, operations, commit_message="put", repo_type=repo_type).oid)
    if tag is not None:
        api.create_tag(repo_id, tag=tag, revision=commit, repo_type=repo_type)
    if branch is not None:
        refs = api.list_repo_refs(repo_id, repo_type=repo_type)
        if branch in {ref.name for ref in refs.branches}:
            api.delete_branch(repo_id, branch=branch, repo_type=repo_type)
        api.create_branch(repo_id, branch=branch, revision=commit, repo_type=repo_type)
    return commit
