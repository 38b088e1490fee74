"""Sigstore bundles, verified by the real package against a Sigstore of our own."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_hub.errors import HubError, IntegrityError, SignatureError, TrustError
from kernels_hub.repository.metadata import METADATA_FILE
from kernels_hub.trust.decision import Admission, RemoteCode, check_signature
from kernels_hub.trust.signature import sign_variant
from kernels_hub.trust.signed_variant import verify_signed
from kernels_hub.trust.sigstore_bundle import KNOWN_SIGNERS, SIGSTORE_ROOT, SigstoreSigner, verify_bundle
from tests.hub.own_sigstore import COMMUNITY, OwnSigstore
from tests.hub.trust_cases import CANDIDATE, edit_metadata, key, make_variant

SIGNER = KNOWN_SIGNERS["kernels-community"]
BY_COMMUNITY = Admission("rule 1", (SIGNER,))
BUNDLE = f"{METADATA_FILE}.sigstore"
CONTENT = b'{"name": "doubling"}'
WHERE = Path("metadata.json.sigstore")


@pytest.fixture(scope="module")
def sigstore() -> OwnSigstore:
    return OwnSigstore()


@pytest.fixture(autouse=True)
def _own_root(
    sigstore: OwnSigstore, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path_factory.mktemp("sigstore")
    monkeypatch.setenv(SIGSTORE_ROOT, str(sigstore.write_root(folder / "trusted_root.json")))
    for variable in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(variable, str(folder))


@pytest.fixture(scope="module")
def bundle(sigstore: OwnSigstore) -> bytes:
    return sigstore.sign(CONTENT).encode()


def verify(bundle: str | bytes, content: bytes = CONTENT, signer: SigstoreSigner = SIGNER) -> SigstoreSigner:
    raw = bundle.encode() if isinstance(bundle, str) else bundle
    return verify_bundle(content, raw, [SigstoreSigner("a/b", ("w.yml@refs/heads/main",)), signer], WHERE)


def test_what_a_trusted_workflow_signed(bundle: bytes):
    assert verify(bundle) == SIGNER


@pytest.mark.parametrize("workflow", SIGNER.workflows)
def test_every_workflow_of_the_community(sigstore: OwnSigstore, workflow: str):
    assert verify(sigstore.sign(CONTENT, workflow=workflow)) == SIGNER


OTHERS = {
    "another repository": {"repository": "evil/kernels-community"},
    "a fork's name": {"repository": "huggingface/kernels-community-2"},
    "another workflow": {"workflow": "test.yaml@refs/heads/main"},
    "another branch": {"workflow": "build.yaml@refs/heads/evil"},
    "the workflow, called by another repository": {"source": "evil/x"},
    "a pull request": {"workflow": "build.yaml@refs/pull/1/merge"},
}


@pytest.mark.parametrize("signed", OTHERS.values(), ids=OTHERS)
def test_what_others_signed(sigstore: OwnSigstore, signed: dict[str, str]):
    with pytest.raises(SignatureError, match="signed by another workflow than those trusted"):
        verify(sigstore.sign(CONTENT, **signed))


def test_another_content(bundle: bytes):
    with pytest.raises(SignatureError, match="does not fit metadata.json"):
        verify(bundle, CONTENT + b" ")


def test_another_authority():
    """Somebody's own certificates, with the right names in them."""
    with pytest.raises(SignatureError, match="does not verify against the root of trust"):
        verify(OwnSigstore().sign(CONTENT))


def test_parts_of_another_authority(sigstore: OwnSigstore):
    """The right authority, but logs that are not its own."""
    for log in ("certificate_log", "signature_log"):
        forged = OwnSigstore(authority=sigstore.authority, now=sigstore.now)
        forged.root = sigstore.root
        assert verify_with(forged, sigstore, log) is None


def verify_with(forged: OwnSigstore, genuine: OwnSigstore, log: str) -> None:
    other = "signature_log" if log == "certificate_log" else "certificate_log"
    setattr(forged, other, getattr(genuine, other))
    with pytest.raises(SignatureError, match="does not verify"):
        verify(forged.sign(CONTENT))
    setattr(forged, log, getattr(genuine, log))
    assert verify(forged.sign(CONTENT)) == SIGNER


@pytest.mark.parametrize("late", [timedelta(hours=1), timedelta(hours=-1)])
def test_a_certificate_that_was_not_valid_then(sigstore: OwnSigstore, late: timedelta):
    with pytest.raises(SignatureError, match="does not verify"):
        verify(sigstore.sign(CONTENT, signed_at=late))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_change_of_what_matters_is_refused(bundle: bytes, data: st.DataObject):
    document = json.loads(bundle)
    entry = document["verificationMaterial"]["tlogEntries"][0]
    holder, name = data.draw(
        st.sampled_from(
            [
                (document["messageSignature"], "signature"),
                (document["messageSignature"]["messageDigest"], "digest"),
                (document["verificationMaterial"]["certificate"], "rawBytes"),
                (entry, "canonicalizedBody"),
                (entry, "integratedTime"),
                (entry["inclusionPromise"], "signedEntryTimestamp"),
                (entry["inclusionProof"], "rootHash"),
                (entry["inclusionProof"]["checkpoint"], "envelope"),
            ]
        )
    )
    text, _, unsigned = holder[name].partition("\n\u2014 ")  # below a note is who signed it, by name
    index = data.draw(st.integers(0, len(text) - 4))  # before base64's last bits, some of which mean nothing
    replacement = data.draw(st.sampled_from("ABCDEFGHabcdefgh0123456789"))
    if text[index] == replacement:
        return
    changed = text[:index] + replacement + text[index + 1 :]
    holder[name] = f"{changed}\n\u2014 {unsigned}" if unsigned else changed
    with pytest.raises(SignatureError):
        verify(json.dumps(document))


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", "\xff", '{"mediaType": "x"}', "[" * 100_000, '{"mediaType": 1}']
)
def test_what_is_no_bundle(text: str):
    with pytest.raises(SignatureError, match="is not a Sigstore bundle") as raised:
        verify(text.encode("latin-1"))
    assert "\n" not in str(raised.value)


def test_bundles_with_parts_missing(bundle: bytes):
    for path in (
        ("messageSignature",),
        ("verificationMaterial", "certificate"),
        ("verificationMaterial", "tlogEntries"),
        ("verificationMaterial", "tlogEntries", 0, "inclusionProof"),
        ("verificationMaterial", "tlogEntries", 0, "inclusionPromise"),
        ("verificationMaterial", "tlogEntries", 0, "canonicalizedBody"),
    ):
        document = holder = json.loads(bundle)
        for step in path[:-1]:
            holder = holder[step]
        del holder[path[-1]]
        with pytest.raises(SignatureError):
            verify(json.dumps(document))


# -- the package and the network --------------------------------------------------------------------


def test_without_the_package(bundle: bytes, monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name == "sigstore" or name.startswith("sigstore.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sigstore", None)
    with pytest.raises(SignatureError, match=r"pip install kernels-hub\[sigstore\]"):
        verify(bundle)


def test_only_the_network_could_tell(bundle: bytes, monkeypatch: pytest.MonkeyPatch):
    """Sigstore's own root of trust does not know our authority; a newer one might."""
    monkeypatch.delenv(SIGSTORE_ROOT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(HubError, match="HF_HUB_OFFLINE forbids") as raised:
        verify(bundle)
    assert not isinstance(raised.value, TrustError)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # nothing listens there
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(HubError, match="root of trust cannot be had") as raised:
        verify(bundle)
    assert not isinstance(raised.value, TrustError)


def test_what_is_wrong_anyway_needs_no_network(
    sigstore: OwnSigstore, bundle: bytes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(SIGSTORE_ROOT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SignatureError, match="does not fit"):
        verify(bundle, CONTENT + b" ")
    with pytest.raises(SignatureError, match="another workflow"):
        verify(sigstore.sign(CONTENT, repository="evil/x"))
    with pytest.raises(SignatureError, match="is not a Sigstore bundle"):
        verify("{}")


def test_a_root_of_trust_that_is_none(bundle: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, content in (("missing.json", None), ("empty.json", ""), ("other.json", "{}")):
        if content is not None:
            (tmp_path / name).write_text(content)
        monkeypatch.setenv(SIGSTORE_ROOT, str(tmp_path / name))
        with pytest.raises(HubError, match="root of trust"):
            verify(bundle)


# -- variants ---------------------------------------------------------------------------------------


@pytest.fixture
def variant(sigstore: OwnSigstore, tmp_path: Path) -> Path:
    folder = make_variant(tmp_path / "torch-cpu", release=None)
    (folder / BUNDLE).write_text(sigstore.sign((folder / METADATA_FILE).read_bytes()))
    return folder


def check(
    folder: Path, candidate: RemoteCode = CANDIDATE, admission: Admission = BY_COMMUNITY
) -> dict[str, str]:
    return check_signature(admission, candidate, folder)


def test_a_variant_that_the_community_signed(variant: Path):
    assert "layers.py" in check(variant)
    assert verify_signed(variant, None).signers == (SIGNER,)
    (variant / "layers.py").write_bytes(b"")
    with pytest.raises(IntegrityError, match="layers.py has other content"):
        check(variant)


def test_a_variant_that_was_altered(variant: Path):
    edit_metadata(variant, license="evil")
    with pytest.raises(SignatureError, match="does not fit"):
        check(variant)
    (variant / METADATA_FILE).write_bytes(b"[" * 100_000)
    with pytest.raises(SignatureError, match="does not fit"):
        check(variant)


def test_a_bundle_is_for_the_kernel_that_its_metadata_names(variant: Path):
    from dataclasses import replace

    for changes in ({"repo_id": "org/halving"}, {"version": 2}, {"version": "2.0.0"}):
        with pytest.raises(SignatureError, match="made for"):
            check(variant, replace(CANDIDATE, **changes))
    for changes in ({"repo_id": "other/Doubling"}, {"version": 1}, {"version": "1.7.0"}):
        assert check(variant, replace(CANDIDATE, **changes))


def test_either_kind_of_signature_will_do(variant: Path, sigstore: OwnSigstore):
    alice, bob = key("alice"), key("bob")
    either = Admission("rule", (alice.public, SIGNER))
    assert check(variant, admission=either)
    sign_variant(variant, bob)
    assert check(variant, admission=either)
    (variant / BUNDLE).unlink()
    with pytest.raises(SignatureError, match=r"is signed by ed25519:.* and has no metadata.json.sigstore"):
        check(variant, admission=either)
    sign_variant(variant, alice)
    assert check(variant, admission=either)
    with pytest.raises(SignatureError, match=r"has no metadata.json.sigstore"):
        check(variant)


def test_the_peers_policy_is_ours():
    """Its list of trusted workflows, so that a change of it is noticed."""
    from kernels.verify import DEFAULT_POLICIES

    (theirs,) = DEFAULT_POLICIES
    assert theirs.repo_id == SIGNER.repository == COMMUNITY
    assert tuple(theirs.signer_uris) == SIGNER.signer_uris


def test_the_peer_accepts_and_refuses_the_same(
    variant: Path, sigstore: OwnSigstore, monkeypatch: pytest.MonkeyPatch
):
    """Its client over the same files, with our Sigstore's root of trust in the place of the public one."""
    import os

    from kernels import verify as peer
    from sigstore.models import TrustedRoot
    from sigstore.verify import Verifier

    root = TrustedRoot.from_file(os.environ[SIGSTORE_ROOT])
    monkeypatch.setattr(peer.Verifier, "production", lambda: Verifier(trusted_root=root))
    result = peer.VerificationResult
    assert isinstance(peer.verify_variant(variant), result.Success)
    assert check(variant)
    (variant / "layers.py").write_bytes(b"")
    assert isinstance(peer.verify_variant(variant), result.DigestVerificationFailure)
    edit_metadata(variant, license="evil")
    assert isinstance(peer.verify_variant(variant), result.SignatureVerificationFailure)
