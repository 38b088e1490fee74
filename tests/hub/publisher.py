"""A small layer repository to publish, the state of a Hub to compare, and a network that fails on cue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
from huggingface_hub.utils._http import default_client_factory

from kernels_hub.hub.publish import Published, publish
from kernels_hub.hub.release import prepare_release

MANIFEST = """\
# a comment that is kept
[kernel]
name = "scale"
version = "0.1.0"
license = "MIT"
summary = "scales"
layers = ["Scale"]
dtypes = ["float32"]

[backends.cpu]
sources = ["package"]
"""

LAYERS = """\
from torch import nn

class Scale(nn.Module):
    has_backward = True

    def forward(self, x):
        return x * {factor}
"""


def write_source(folder: Path, factor: int = 2, **more: str) -> Path:
    """A repository in source form; more: name of a file of the package -> text."""
    package = folder / "package"
    package.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.toml").write_text(MANIFEST)
    (package / "__init__.py").write_text("from . import layers\n")
    (package / "layers.py").write_text(LAYERS.format(factor=factor))
    for name, text in more.items():
        (package / f"{name}.py").write_text(text)
    return folder


def publish_source(source: Path, repo_id: str, version: str | None, **options: Any) -> Published:
    given = {name: options.pop(name) for name in ("repo_type", "key") if name in options}
    with prepare_release(source, repo_id, version, **given) as release:
        return publish(release, **options)


# -- the state of a repository ------------------------------------------------------------------------


def tree_of(api: Any, repo_id: str, revision: str, repo_type: str = "kernel") -> dict[str, str]:
    """Path -> name of the content."""
    found = api.list_repo_tree(repo_id, recursive=True, revision=revision, repo_type=repo_type)
    return {entry.path: entry.blob_id for entry in found if hasattr(entry, "blob_id")}


def state_of(api: Any, repo_id: str, repo_type: str = "kernel") -> dict[str, Any]:
    """Everything of a repository that its users see, without names of commits."""
    refs = api.list_repo_refs(repo_id, repo_type=repo_type)

    def titles(revision: str) -> list[str]:
        return [c.title for c in api.list_repo_commits(repo_id, revision=revision, repo_type=repo_type)]

    return {
        kind: {ref.name: (tree_of(api, repo_id, ref.target_commit, repo_type), titles(ref.target_commit)) for ref in found}
        for kind, found in (("branches", refs.branches), ("tags", refs.tags))
    }  # fmt: skip


# -- the network --------------------------------------------------------------------------------------


def is_write(request: httpx2.Request) -> bool:
    """Whether a request changes what a Hub holds for its users; uploads of content alone do not."""
    path = request.url.path
    if request.method == "DELETE":
        return True
    words = ("/api/repos/create", "/branch/", "/tag/", "/commit/")
    return request.method == "POST" and any(word in path for word in words)


@dataclass
class Network(httpx2.BaseTransport):
    """Passes requests on, counts writes, and does what it was told at one of them."""

    inner: httpx2.BaseTransport
    at: int | None = None
    """Number of the write at which to act; None for none of them."""
    before: Callable[[httpx2.Request], httpx2.Response | None] = lambda _: None
    """Called before it is sent; a response is given instead of the server's."""
    lost: bool = False
    """Its answer is lost: the server did it, and the connection is gone."""
    dead: bool = False
    writes: list[str] = field(default_factory=list)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.dead:
            raise httpx2.ConnectError("the network is gone", request=request)
        if not is_write(request):
            return self.inner.handle_request(request)
        self.writes.append(f"{request.method} {request.url.path}")
        if len(self.writes) - 1 != self.at:
            return self.inner.handle_request(request)
        if (response := self.before(request)) is not None:
            return response
        if self.lost:
            self.inner.handle_request(request).read()
            self.dead = True
        if self.dead:
            raise httpx2.ReadError("the connection was closed", request=request)
        return self.inner.handle_request(request)

    def close(self) -> None:
        self.inner.close()

    def die(self, request: httpx2.Request) -> None:
        """For `before`: from now on nothing gets through."""
        self.dead = True


@contextmanager
def network(**options: Any) -> Iterator[Network]:
    """The network of huggingface_hub in this process, for a while."""
    found: list[Network] = []

    def factory() -> httpx2.Client:
        client = default_client_factory()
        client._transport = Network(client._transport, **options)
        found.append(client._transport)
        return client

    huggingface_hub.set_client_factory(factory)
    try:
        huggingface_hub.utils.get_session()
        yield found[0]
    finally:
        huggingface_hub.set_client_factory(default_client_factory)
