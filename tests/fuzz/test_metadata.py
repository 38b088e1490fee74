"""metadata.json, its signatures, the trust policy, kernel.toml and what the cache keeps."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from kernels_hub.errors import HubError, MetadataError, SignatureError, TrustError
from kernels_hub.hub.cache import KnownRefs, RepositoryCache
from kernels_hub.hub.known_refs import parse_yanked
from kernels_hub.hub.tree import File, Tree
from kernels_hub.repository.metadata import KernelDependency, Metadata, check_python_depends, parse_metadata
from kernels_hub.repository.source import MANIFEST_FILE, read_source_repository
from kernels_hub.repository.variant_files import parse_listing
from kernels_hub.repository.versions import Refs
from kernels_hub.trust.policy import parse_policy
from kernels_hub.trust.signature import read_signatures, sign_variant
from tests.fuzz.harness import budget, run
from tests.fuzz.mutations import HOSTILE_TEXTS, either, mutate_bytes, mutate_json
from tests.hub.trust_cases import key, make_variant

PLACE = Path("metadata.json")


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_variant(tmp_path_factory.mktemp("variant") / "torch-cpu")
    sign_variant(folder, key("one"), repo_id="org/doubling")
    sign_variant(folder, key("two"))
    return folder


@pytest.fixture(scope="module")
def seeds(variant: Path) -> list[bytes]:
    depends = (KernelDependency("org/other", version=1), KernelDependency("org/third", revision="main"))
    rich = Metadata(
        "x", "x_1", 1, "MIT", python_depends=("einops", "triton"), kernel_depends=depends, backend="cuda",
        archs=("9.0",), release="1.2.0", summary="s", layers=("L",), functions=("f",), provenance={"a": 1},
    )  # fmt: skip
    return [(variant / "metadata.json").read_bytes(), rich.to_json().encode(), b'{"name": "x"}']


def test_metadata(seeds: list[bytes]) -> None:
    def parse(data: bytes) -> None:
        found = parse_metadata(data, PLACE)
        again = parse_metadata(found.to_json().encode(), PLACE)
        assert again.name == found.name and again.digest == found.digest
        assert all(path and not path.startswith("/") for path in (found.digest.files if found.digest else ()))

    run("metadata", seeds, mutate_json, parse, (MetadataError,), count=budget())


def test_listings(seeds: list[bytes]) -> None:
    run(
        "metadata",
        seeds,
        mutate_json,
        lambda data: parse_listing(data, PLACE),
        (MetadataError,),
        count=budget(),
    )


def test_signatures(variant: Path) -> None:
    """One spelling only: a variant that parses says what was signed."""
    path, metadata = variant / "metadata.json.ed25519", (variant / "metadata.json").read_bytes()
    good = path.read_bytes()
    expected = read_signatures(variant, metadata)

    def parse(data: bytes) -> None:
        path.write_bytes(data)
        assert set(read_signatures(variant, metadata)) <= set(expected)  # one may be left out

    def mutate(data: bytes, chance: random.Random) -> bytes:
        if chance.random() < 0.3:
            return data
        changed = either(mutate_json, mutate_bytes)(data, chance)
        try:  # as the library spells it, so that not every change is refused for its spelling
            return (json.dumps(json.loads(changed), indent=2, sort_keys=True) + "\n").encode(
                "utf-8", "surrogatepass"
            )
        except (ValueError, RecursionError):
            return changed

    run("signature", [good], mutate, parse, (SignatureError,), count=budget(200, 20_000))


POLICY = f"""\
schema = 1
publisher = false

[[rule]]
allow = "my-org/*"

[[rule]]
signature = ["other-org/*"]
keys = ["{key("one").public}"]
sigstore = ["kernels-community", {{repository = "org/name", workflows = ["build.yaml@refs/heads/main"]}}]

[[rule]]
publisher = "*"
endpoint = "https://hub.example.org"

[[rule]]
deny = "evil/*"
""".encode()


def mutate_text(data: bytes, chance: random.Random) -> bytes:
    """Put a text where another was, or bytes anywhere."""
    if chance.random() < 0.5:
        return mutate_bytes(data, chance)
    lines = data.decode().splitlines(keepends=True)
    at = chance.randrange(len(lines))
    name, equals, _ = lines[at].partition("=")
    values = (
        json.dumps(chance.choice(HOSTILE_TEXTS)),
        "1",
        "[]",
        "{}",
        "true",
        "[[1]]",
        '["x", 1]',
        "1e400",
        "nan",
    )
    if equals:
        lines[at] = f"{name}= {chance.choice(values)}\n"
    return "".join(lines).encode("utf-8", "surrogatepass")


def test_trust_policies() -> None:
    def parse(data: bytes) -> None:
        policy = parse_policy.__wrapped__(data, Path("trust.toml"))
        for action in ("allow", "deny", "signature", "publisher"):
            policy.matching(action, "org/name", "https://hub.example.org")

    seeds = [POLICY, b"schema = 1\n", b'schema = 1\n[[rule]]\nallow = "org/*"\n']
    run("trust_policy", seeds, mutate_text, parse, (TrustError,), count=budget())


def test_manifests(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    seed = b"""\
[kernel]
name = "scale"
version = "0.1.0"
license = "MIT"
summary = "scales"
layers = ["Scale"]
dtypes = ["float32"]
kernel-depends = [{ repo-id = "org/name", version = 1 }]

[backends.cpu]
sources = ["package"]
python-depends = ["einops"]
variants = { torch-stable-abi211-cpu-x86_64-linux = ["package"] }
"""

    def parse(data: bytes) -> None:
        (tmp_path / MANIFEST_FILE).write_bytes(data)
        read_source_repository(tmp_path)

    run("kernel_toml", [seed], mutate_text, parse, (MetadataError,), count=budget())


COMMIT = "c" * 40


def test_what_the_cache_keeps(tmp_path: Path) -> None:
    """Trees and refs: what is damaged was never there."""
    place = RepositoryCache(tmp_path, "org/x", "kernel")
    tree = Tree.of(
        COMMIT,
        [File("build/torch-cpu/__init__.py", 3, blob="a" * 40), File("build/x/y", None, sha256="b" * 64)],
    )
    place.write_refs(KnownRefs(Refs({"main": COMMIT}, {"v1.0.0": COMMIT}), {"0.1.0": "bad"}, 3.0))
    path = place.folder / ".kernels_hub" / "refs.json"

    def parse_refs(data: bytes) -> None:
        path.write_bytes(data)
        if (known := place.read_refs()) is not None:
            assert all(
                len(commit) == 40 for commit in (*known.refs.branches.values(), *known.refs.tags.values())
            )

    run("refs", [path.read_bytes()], mutate_json, parse_refs, (), count=budget(200, 20_000))
    seeds = [tree.to_json().encode()]
    run(
        "tree",
        seeds,
        mutate_json,
        lambda data: Tree.from_json(data).variants(),
        (MetadataError, HubError),
        count=budget(),
    )


def test_yanked_releases() -> None:
    seeds = [b'{"1.2.0": "wrong", "0.1.0": ""}', b"{}"]
    run(
        "yanked",
        seeds,
        mutate_json,
        lambda data: parse_yanked(data, "yanked.json"),
        (MetadataError,),
        count=budget(),
    )


def test_python_packages_are_names() -> None:
    for name in (*HOSTILE_TEXTS, "-r/etc/passwd", "--index-url=https://x", "a b", "os.path.", "a;b"):
        document = {"name": "x", "python-depends": [name]}
        try:
            found = parse_metadata(json.dumps(document).encode(), PLACE)
        except MetadataError:
            continue
        assert name.replace(".", "").replace("-", "").replace("_", "").isalnum()
        assert found.python_depends == (name,)
    check_python_depends(Metadata("x"))
