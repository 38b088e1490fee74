"""Trust end to end: kernels on a real Hub, the policy in force, and code that leaves a trace if it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd

from kernels_hub import get_kernel
from kernels_hub.errors import HubError, IntegrityError, SignatureError, TrustError
from kernels_hub.hub import client
from kernels_hub.trust.policy_edit import add_rule, remove_rule, set_switch
from kernels_hub.trust.signature import sign_variant
from tests.hub.place import Place
from tests.hub.small_kernels import put, write_variant
from tests.hub.trust_cases import key

ALICE, BOB = key("alice"), key("bob")


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where kernels of these tests write a file when they are imported."""
    monkeypatch.delenv("KERNELS_HUB_TRUST", raising=False)
    return tmp_path / "it ran"


def publish(place: Place, traces: Path, *signers: object, name: str = "small", **where: str) -> Path:
    """A release 1.0.0 whose code leaves a trace; the folder that was uploaded."""
    variant = place.scratch / f"{name}-{len(list(place.scratch.glob('*')))}" / "torch-cpu"
    write_variant(variant, 1, name=name)
    (variant / "__init__.py").write_text(
        f"import pathlib\npathlib.Path({str(traces)!r}).write_text('ran')\nVALUE = 1\n"
    )
    relist(variant)
    for signer in signers:
        sign_variant(variant, signer, **where)
    put(place.api, place.repo(name), variant.parent, tag="v1.0.0", branch="v1")
    return variant


def relist(variant: Path) -> None:
    from dataclasses import replace

    from kernels_hub.repository.digest import compute_digest, list_files
    from kernels_hub.repository.metadata import read_metadata

    metadata = replace(read_metadata(variant), digest=compute_digest(list_files(variant)))
    (variant / "metadata.json").write_text(metadata.to_json())


def overwrite(place: Place, inside: str, content: bytes, name: str = "small") -> None:
    """What somebody with access to the Hub does: the branch and the tag move to other content."""
    repository = place.repo(name)
    for revision in ("main", "v1"):
        operation = CommitOperationAdd(f"build/torch-cpu/{inside}", content)
        place.api.create_commit(
            repository, [operation], commit_message="harmless", repo_type="kernel", revision=revision
        )


def load(place: Place, **wanted: object) -> object:
    client.forget()
    return get_kernel(place.repo(), **({"version": 1} | wanted))


def test_what_no_rule_admits_is_not_even_downloaded(place: Place, traces: Path):
    publish(place, traces)
    with pytest.raises(TrustError, match="is not a trusted publisher there") as raised:
        load(place)
    assert f"kernels-hub trust allow {place.repo()}" in str(raised.value)
    assert not [line for line in place.requests("resolve") if "/build/" in line]
    assert not list(place.cache.rglob("__init__.py"))
    assert not traces.exists()
    add_rule("allow", place.repo())
    assert load(place).VALUE == 1
    assert traces.exists()


def test_the_hubs_flag_for_publishers(place: Place, traces: Path):
    publish(place, traces)
    trusted = f"{place.organisation}t"
    place.hub.organisation(trusted, "maker", trusted=True)
    place.organisation = trusted
    publish(place, traces)
    assert load(place).VALUE == 1
    set_switch("publisher", False)
    with pytest.raises(TrustError, match="publisher = false"):
        load(place)


def test_a_signed_kernel_runs(place: Place, traces: Path):
    publish(place, traces, ALICE, repo_id=place.repo())
    add_rule("signature", f"{place.organisation}/*", signers=[ALICE.public])
    assert load(place).VALUE == 1
    assert load(place, version="==1.0.0").VALUE == 1
    place.offline()
    assert load(place).VALUE == 1


@pytest.mark.parametrize("caller", [False, True])
def test_an_unsigned_kernel_does_not(place: Place, traces: Path, caller: bool):
    publish(place, traces)
    add_rule("signature", f"{place.organisation}/*", signers=[ALICE.public])
    with pytest.raises(SignatureError, match=r"has no metadata\.json\.ed25519"):
        load(place, trust_remote_code=caller)
    assert not traces.exists()


def test_another_key(place: Place, traces: Path):
    publish(place, traces, BOB)
    add_rule("signature", f"{place.organisation}/*", signers=[ALICE.public])
    add_rule("signature", "another/*", signers=[BOB.public])
    with pytest.raises(SignatureError, match="it lacks a signature by ed25519:.* alice"):
        load(place)
    assert not traces.exists()


@pytest.mark.parametrize("inside", ["__init__.py", "metadata.json", "metadata.json.ed25519", "layers.py"])
def test_what_the_hub_altered(place: Place, traces: Path, inside: str):
    variant = publish(place, traces, ALICE)
    add_rule("signature", f"{place.organisation}/*", signers=[ALICE.public])
    content = (variant / inside).read_bytes() if (variant / inside).exists() else b"import os\n"
    overwrite(place, inside, content.replace(b"a", b"b", 1) + (b"" if b"a" in content else b" "))
    with pytest.raises((SignatureError, IntegrityError)):
        load(place)
    assert not traces.exists()


def test_an_old_release_under_a_new_tag(place: Place, traces: Path):
    """The Hub says that this commit is 1.1.0; what was signed says 1.0.0."""
    publish(place, traces, ALICE, release="1.0.0")
    add_rule("signature", f"{place.organisation}/*", signers=[ALICE.public])
    head = place.api.repo_info(place.repo(), repo_type="kernel").sha
    place.api.create_tag(place.repo(), tag="v1.1.0", revision=head, repo_type="kernel")
    with pytest.raises(SignatureError, match="made for version"):
        load(place, version=">=1.1")
    assert not traces.exists()


def test_a_signed_kernel_in_another_repository(place: Place, traces: Path):
    variant = publish(place, traces, ALICE, repo_id=f"{place.organisation}/other")
    add_rule("signature", f"{place.organisation}/*", signers=[ALICE.public])
    with pytest.raises(SignatureError, match="made for repository"):
        load(place)
    assert not traces.exists()
    sign_variant(variant, ALICE, repo_id=place.repo())
    overwrite(place, "metadata.json.ed25519", (variant / "metadata.json.ed25519").read_bytes())
    assert load(place).VALUE == 1


def test_a_denial_holds_for_what_is_cached(place: Place, traces: Path):
    publish(place, traces)
    add_rule("allow", place.repo())
    assert load(place).VALUE == 1
    rule, _ = add_rule("deny", f"{place.organisation}/*")
    for offline in (False, True):
        place.offline(offline)
        with pytest.raises(TrustError, match="denies it"):
            load(place, trust_remote_code=True)
    remove_rule(rule.number)
    assert load(place).VALUE == 1


@pytest.mark.parametrize("signed", [True, False])
def test_a_cache_that_was_altered(place: Place, traces: Path, signed: bool):
    publish(place, traces, *([ALICE] if signed else []))
    if signed:
        add_rule("signature", f"{place.organisation}/*", signers=[ALICE.public])
    else:
        add_rule("allow", f"{place.organisation}/*")
    assert load(place).VALUE == 1
    traces.unlink()
    (blob,) = {path.resolve() for path in place.cache.rglob("snapshots/*/build/torch-cpu/__init__.py")}
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes().replace(b"VALUE = 1", b"VALUE = 2"))
    place.offline()
    with pytest.raises(IntegrityError):
        load(place)
    assert not traces.exists()


def test_a_hub_that_is_away_is_not_a_matter_of_trust(place: Place, traces: Path):
    publish(place, traces)
    place.at("http://127.0.0.1:9")
    with pytest.raises(HubError) as raised:
        load(place)
    assert not isinstance(raised.value, TrustError)
