"""Signed variants: whatever is altered, moved, added, removed or signed by others is refused, before it is read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_hub.errors import IntegrityError, MetadataError, SignatureError, TrustError
from kernels_hub.repository.digest import content_digest, list_files
from kernels_hub.repository.metadata import METADATA_FILE, Metadata
from kernels_hub.trust.decision import Admission, check_signature
from kernels_hub.trust.signature import Statement, read_signatures, sign_variant, signed_bytes
from kernels_hub.trust.signed_variant import UnsignedError, verify_signed, verify_unsigned
from tests.hub.trust_cases import CANDIDATE, FILES, edit_metadata, key, make_variant, relist

ALICE, BOB = key("alice"), key("bob")
BY_ALICE = Admission("rule 1", (ALICE.public,))
SIGNATURE = f"{METADATA_FILE}.ed25519"


def check(folder: Path, admission: Admission = BY_ALICE, **changes: object) -> dict[str, str]:
    return check_signature(admission, replace(CANDIDATE, **changes), folder)


@pytest.fixture
def variant(tmp_path: Path) -> Path:
    folder = make_variant(tmp_path / "build" / "torch-cpu")
    sign_variant(folder, ALICE, repo_id=CANDIDATE.repo_id)
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed variant that tests change and put back."""
    folder = make_variant(tmp_path_factory.mktemp("signed") / "torch-cpu")
    sign_variant(folder, ALICE)
    sign_variant(folder, BOB)
    return folder


@contextmanager
def altered(path: Path, content: bytes) -> Iterator[None]:
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


# -- what is right is accepted ----------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_a_signed_variant_is_accepted_and_every_file_named(tmp_path: Path, algorithm: str):
    folder = make_variant(tmp_path / "torch-cpu", algorithm=algorithm)
    path = sign_variant(folder, ALICE)
    assert path == folder / SIGNATURE
    expected = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    expected[METADATA_FILE] = hashlib.sha256((folder / METADATA_FILE).read_bytes()).hexdigest()
    assert check(folder) == expected
    assert check(folder, version="1.2.0") == expected
    assert check(folder, version=1) == expected


def test_signing_again_gives_the_same_bytes_and_readable_files(variant: Path):
    before = (variant / SIGNATURE).read_bytes()
    sign_variant(variant, ALICE, repo_id=CANDIDATE.repo_id)
    assert (variant / SIGNATURE).read_bytes() == before
    assert stat.S_IMODE((variant / SIGNATURE).stat().st_mode) == 0o644
    assert [path.name for path in variant.parent.iterdir()] == ["torch-cpu"]  # no scratch files


def test_several_signatures_in_any_order(variant: Path):
    sign_variant(variant, BOB)
    both = (variant / SIGNATURE).read_bytes()
    for admitted in (ALICE, BOB):
        assert check(variant, Admission("rule", (admitted.public,)))
    metadata = (variant / METADATA_FILE).read_bytes()
    assert {one.key for one in read_signatures(variant, metadata)} == {ALICE.public, BOB.public}
    (variant / SIGNATURE).unlink()
    sign_variant(variant, BOB)
    sign_variant(variant, ALICE, repo_id=CANDIDATE.repo_id)
    assert (variant / SIGNATURE).read_bytes() == both


def test_one_key_signs_for_two_repositories(variant: Path):
    sign_variant(variant, ALICE, repo_id="mirror/double")
    assert check(variant)
    assert check(variant, repo_id="mirror/double")
    with pytest.raises(SignatureError, match="made for repository"):
        check(variant, repo_id="mirror/other")


def test_signatures_over_another_build_are_dropped(variant: Path):
    (variant / "layers.py").write_bytes(b"class Double: pass\n")
    relist(variant, Metadata("doubling", version=1, release="1.2.0"))
    sign_variant(variant, BOB)
    assert [one.key for one in read_signatures(variant, (variant / METADATA_FILE).read_bytes())] == [
        BOB.public
    ]
    with pytest.raises(SignatureError):
        check(variant)


def test_the_message_is_the_documented_one():
    """Pinned: other implementations, and our own later ones, have to make the same bytes."""
    message = signed_bytes(Statement("torch-cpu", "org/doubling", "1.2.0"), b"{}")
    statement = (
        b'{"release":"1.2.0","repository":"org/doubling","signed":"metadata.json","variant":"torch-cpu"}'
    )
    assert (
        message
        == b"kernels_hub variant signature v1\0" + bytes([0, 0, 0, len(statement)]) + statement + b"{}"
    )


def test_no_statement_runs_over_into_the_metadata():
    seen = {
        signed_bytes(Statement("v", repository, release), metadata)
        for repository in (None, "", "a", 'a","variant":"v')
        for release in (None, "", "1")
        for metadata in (b"", b"{}", b'"}{}')
    }
    assert len(seen) == 4 * 3 * 3


# -- any byte ---------------------------------------------------------------------------------------


def test_every_byte_of_every_file_counts(shared: Path):
    """Exhaustive: one bit of each byte of each file, of metadata.json and of the signatures."""
    flips = 0
    for path in list_files(shared).values():
        content = path.read_bytes()
        for offset in range(len(content)):
            flipped = bytearray(content)
            flipped[offset] ^= 1
            with altered(path, bytes(flipped)), pytest.raises((SignatureError, IntegrityError)):
                check(shared)
            flips += 1
    assert flips > 1300
    assert check(shared)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_change_of_any_file_is_found(shared: Path, data: st.DataObject):
    path = data.draw(st.sampled_from(sorted(list_files(shared).values())))
    content = path.read_bytes()
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, min(len(content), start + 8)))
    new = content[:start] + data.draw(st.binary(max_size=8)) + content[end:]
    if new == content:
        assert check(shared)
        return
    with altered(path, new), pytest.raises((SignatureError, IntegrityError)):
        check(shared)
    with altered(path, new), pytest.raises((SignatureError, IntegrityError)):
        check(shared, Admission("rule", (BOB.public,)))


@pytest.mark.parametrize(
    "hostile",
    [b"", b"\xff", b"[" * 100_000, b'{"name": 1}', b"{}"],
    ids=["empty", "no UTF-8", "deep", "wrong type", "no name"],
)
def test_nothing_is_parsed_before_the_signature_holds(shared: Path, hostile: bytes):
    with (
        altered(shared / METADATA_FILE, hostile),
        pytest.raises(SignatureError, match="does not fit metadata.json"),
    ):
        check(shared)


# -- keys -------------------------------------------------------------------------------------------


def test_a_key_that_is_not_trusted_for_it(variant: Path):
    with pytest.raises(SignatureError) as raised:
        check(variant, Admission("rule 2 of /policy (signature org/*)", (BOB.public,)))
    for part in (ALICE.public.id, str(BOB.public), "rule 2 of /policy", "trust add KEY --for org/doubling"):
        assert part in str(raised.value)


def test_a_signature_made_out_to_another_key(variant: Path):
    """Bob's name over Alice's signature, and the other way round."""
    document = json.loads((variant / SIGNATURE).read_text())
    document["signatures"][0]["key"] = BOB.public.id
    (variant / SIGNATURE).write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    for admitted in (ALICE, BOB):
        with pytest.raises(SignatureError, match="does not fit"):
            check(variant, Admission("rule", (admitted.public,)))


def test_a_signature_of_another_message_by_the_same_key(variant: Path, tmp_path: Path):
    other = make_variant(tmp_path / "other" / "torch-cpu", release="1.3.0")
    shutil.copy(sign_variant(other, ALICE), variant / SIGNATURE)
    with pytest.raises(SignatureError, match="does not fit"):
        check(variant)


def test_the_bare_bytes_of_metadata_are_not_what_is_signed(variant: Path):
    """A signature that the key made for something else than us must not count."""
    import base64

    document = json.loads((variant / SIGNATURE).read_text())
    bare = ALICE.sign((variant / METADATA_FILE).read_bytes())
    document["signatures"][0]["signature"] = base64.b64encode(bare).decode()
    (variant / SIGNATURE).write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    with pytest.raises(SignatureError, match="does not fit"):
        check(variant)


def test_a_stripped_signature(variant: Path):
    (variant / SIGNATURE).unlink()
    with pytest.raises(SignatureError, match=r"has no metadata.json.ed25519"):
        check(variant)
    (variant / METADATA_FILE).unlink()
    with pytest.raises(SignatureError, match=r"has no metadata.json"):
        check(variant)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", '{"version": 2, "signatures": []}', '{"version": 1, "signatures": []}',
     '{"version": 1, "signatures": [{}]}', '{"version": 1, "signatures": [1]}',
     '{"version": 1, "signatures": [{"key": "ed25519:AAAA", "signature": "", "variant": "x", "repository": null, "release": null}]}',
     '{"version": 1, "signatures": [{"key": 3, "signature": "", "variant": "x", "repository": null, "release": null}]}',
     "[" * 100_000, "x" * 300_000],
)  # fmt: skip
def test_malformed_signature_files(variant: Path, text: str):
    (variant / SIGNATURE).write_text(text)
    with pytest.raises(SignatureError, match=r"metadata\.json\.ed25519"):
        check(variant)
    with pytest.raises(SignatureError, match=r"metadata\.json\.ed25519"):
        sign_variant(variant, ALICE)


# -- places -----------------------------------------------------------------------------------------

PLACES = {
    # what was signed: how, and under which candidates it holds or not
    "bound to the repository": ({"repo_id": "org/doubling"}, {"repo_id": "org/other"}),
    "bound, another organisation": ({"repo_id": "org/doubling"}, {"repo_id": "evil/doubling"}),
    "by the kernel's name": ({}, {"repo_id": "org/halving"}),
    "an older release under a new tag": ({}, {"version": "1.3.0"}),
    "another major version": ({}, {"version": 2}),
    "a longer number": ({}, {"version": "1.2.0.1"}),
}


@pytest.mark.parametrize(("signed", "elsewhere"), PLACES.values(), ids=PLACES)
def test_signed_files_in_another_place(tmp_path: Path, signed: dict[str, str], elsewhere: dict[str, str]):
    folder = make_variant(tmp_path / "torch-cpu")
    sign_variant(folder, ALICE, **signed)
    assert check(folder, version="1.2.0")
    with pytest.raises(SignatureError, match="made for"):
        check(folder, **elsewhere)


def test_another_variants_files(variant: Path):
    moved = variant.rename(variant.parent / "torch-cuda")
    with pytest.raises(SignatureError, match="variant 'torch-cpu', not 'torch-cuda'"):
        check(moved)


def test_a_release_that_only_the_signer_knows(tmp_path: Path):
    """Kernels of other builders have no release in metadata.json."""
    folder = make_variant(tmp_path / "torch-cpu", release=None)
    sign_variant(folder, ALICE, release="1.4.2")
    assert check(folder, version="1.4.2")
    assert check(folder, version=1)
    for version in ("1.4.1", 2):
        with pytest.raises(SignatureError, match="made for version 1.4.2"):
            check(folder, version=version)


@pytest.mark.parametrize(
    ("signed", "asked", "same"),
    [
        ("1.2.0rc1", "1.2.0-rc.1", True),
        ("1.2.0", "1.2", True),
        ("1.2.0", "1.2.0rc1", False),
        ("1.2.0", "1.2.0.post1", False),
        ("1.2.0", "1.2.00", True),
        ("1.2.0", "1.20", False),
        ("1.2.0", "1!1.2.0", False),
        ("nightly", "nightly", True),
        ("nightly", "1.2.0", False),
    ],
)
def test_versions_are_compared_as_versions(tmp_path: Path, signed: str, asked: str, same: bool):
    folder = make_variant(tmp_path / "torch-cpu", release=signed)
    sign_variant(folder, ALICE)
    if same:
        assert check(folder, version=asked)
    else:
        with pytest.raises(SignatureError, match="made for version"):
            check(folder, version=asked)


def test_a_major_version_is_all_that_is_known(tmp_path: Path):
    folder = make_variant(tmp_path / "torch-cpu", release=None)
    sign_variant(folder, ALICE)
    assert check(folder, version="1.4.2")
    with pytest.raises(SignatureError, match="made for version 1, not 2.0.0"):
        check(folder, version="2.0.0")
    edit_metadata(folder, version=None)
    sign_variant(folder, ALICE)
    assert check(folder)
    with pytest.raises(SignatureError, match="made for version None"):
        check(folder, version="1.4.2")


def test_names_are_compared_as_hubs_do(tmp_path: Path):
    folder = make_variant(tmp_path / "torch-cpu", name="flash-attn")
    sign_variant(folder, ALICE)
    assert check(folder, repo_id="org/Flash_Attn")
    sign_variant(folder, ALICE, repo_id="Org/flash-attn")
    assert check(folder, repo_id="org/flash-attn")


# -- files ------------------------------------------------------------------------------------------


def _rename_case(folder: Path) -> None:
    (folder / "layers.py").rename(folder / "Layers.py")


def _link(name: str, target: str):
    def change(folder: Path) -> None:
        outside = folder.parent / "outside.py"
        outside.write_bytes(FILES["layers.py"])
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target.format(outside=outside, folder=folder))

    return change


def _link_folder(folder: Path) -> None:
    shutil.move(folder / "native", folder.parent / "native")
    (folder / "native").symlink_to(folder.parent / "native")


def _write(name: str, content: bytes = b"import os\n"):
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    return change


CHANGES = {
    "added": _write("evil.py"),
    "added, empty": _write("evil.py", b""),
    "added in a folder": _write("native/evil.py"),
    "added in a new folder": _write("hidden/evil.py"),
    "added, hidden": _write(".evil"),
    "added, named like metadata": _write("metadata.json.bak"),
    "metadata of a folder": _write("native/metadata.json"),
    "sources among bytecode": _write("__pycache__/evil.py"),
    "bytecode of a folder deeper": _write("__pycache__/deep/evil.pyc"),
    "removed": lambda folder: (folder / "layers.py").unlink(),
    "removed, empty": lambda folder: (folder / "empty.py").unlink(),
    "renamed": lambda folder: (folder / "layers.py").rename(folder / "layer.py"),
    "renamed in case": _rename_case,
    "moved": lambda folder: (folder / "layers.py").rename(folder / "native" / "layers.py"),
    "swapped": lambda folder: (folder / "layers.py").write_bytes(FILES["__init__.py"]),
    "a folder for a file": lambda folder: ((folder / "empty.py").unlink(), (folder / "empty.py").mkdir()),
    "a link out, same content": _link("layers.py", "{outside}"),
    "a link to a listed file": _link("empty.py", "{folder}/layers.py"),
    "a dangling link": _link("layers.py", "nowhere"),
    "a link to itself": _link("layers.py", "layers.py"),
    "an added link": _link("more.py", "layers.py"),
    "a folder that is a link": _link_folder,
    "a pipe": lambda folder: os.mkfifo(folder / "pipe"),
    "a pipe for a file": lambda folder: ((folder / "layers.py").unlink(), os.mkfifo(folder / "layers.py")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("signed", [True, False])
def test_the_files_are_exactly_those_listed(variant: Path, change, signed: bool):
    if os.name != "posix":
        pytest.skip("needs links and pipes")
    change(variant)
    with pytest.raises(IntegrityError, match="not imported|not bytecode"):
        check(variant) if signed else verify_unsigned(variant)


def test_a_signed_metadata_cannot_list_its_way_out(tmp_path: Path):
    """Paths are compared, never opened."""
    folder = make_variant(tmp_path / "torch-cpu")
    document = json.loads((folder / METADATA_FILE).read_text())
    for path in ("../secret", "/etc/passwd", "native/../layers.py", METADATA_FILE):
        document["digest"]["files"][path] = document["digest"]["files"]["layers.py"]
        (folder / METADATA_FILE).write_text(json.dumps(document))
        with pytest.raises(IntegrityError, match="is missing"):
            sign_variant(folder, ALICE)
        del document["digest"]["files"][path]


def test_the_error_names_each_file(variant: Path):
    (variant / "layers.py").write_bytes(b"class Treble: ...\n")
    (variant / "empty.py").unlink()
    (variant / "new.py").write_bytes(b"")
    with pytest.raises(IntegrityError) as raised:
        check(variant)
    assert "empty.py is missing; new.py is not listed; layers.py has other content" in str(raised.value)


def test_names_that_would_paint_the_terminal(variant: Path):
    (variant / "\x1b[2Jok.py").write_bytes(b"")
    with pytest.raises(IntegrityError) as raised:
        check(variant)
    assert str(raised.value).isprintable()


def test_bytecode_beside_sources_is_passed_over(variant: Path):
    _write("__pycache__/layers.cpython-311.pyc")(variant)
    assert "__pycache__/layers.cpython-311.pyc" not in check(variant)


def test_the_hub_caches_links_are_followed_into_its_blobs_only(tmp_path: Path, variant: Path):
    repository = tmp_path / "cache" / "kernels--org--doubling"
    snapshot = repository / "snapshots" / ("0" * 40) / "build" / "torch-cpu"
    (repository / "blobs").mkdir(parents=True)
    for inside, path in list_files(variant).items():
        blob = repository / "blobs" / hashlib.sha256(inside.encode()).hexdigest()
        shutil.copy(path, blob)
        (snapshot / inside).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / inside).symlink_to(os.path.relpath(blob, (snapshot / inside).parent))
    assert check(snapshot) == check(variant)
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path / "cache")
    assert check(linked / snapshot.relative_to(tmp_path / "cache")) == check(variant)
    (snapshot / "layers.py").unlink()
    (snapshot / "layers.py").symlink_to(variant / "layers.py")
    with pytest.raises(IntegrityError, match="is a link to"):
        check(snapshot)
    other = tmp_path / "cache" / "kernels--evil--x" / "blobs"
    other.mkdir(parents=True)
    shutil.copy(variant / "layers.py", other / "1")
    (snapshot / "layers.py").unlink()
    (snapshot / "layers.py").symlink_to(other / "1")
    with pytest.raises(IntegrityError, match="is a link to"):
        check(snapshot)


def test_a_change_between_two_readings_is_found(variant: Path, monkeypatch: pytest.MonkeyPatch):
    from kernels_hub.trust import signed_variant

    def swapped(folder: Path, *arguments: object) -> object:
        edit_metadata(folder, license="evil")
        return original(folder, *arguments)

    original = signed_variant.verify_files
    monkeypatch.setattr(signed_variant, "verify_files", swapped)
    with pytest.raises(IntegrityError, match="changed while it was verified"):
        check(variant)


# -- without a signature ----------------------------------------------------------------------------


def test_unsigned_variants_are_checked_against_their_own_listing(tmp_path: Path):
    folder = make_variant(tmp_path / "torch-cpu")
    hashes = check(folder, Admission("allow"))
    assert hashes.keys() == {*FILES, METADATA_FILE}
    (folder / "layers.py").write_bytes(b"evil\n")
    with pytest.raises(IntegrityError):
        check(folder, Admission("allow"))


@pytest.mark.parametrize("remove", ["digest", METADATA_FILE])
def test_variants_that_list_nothing(tmp_path: Path, remove: str):
    folder = make_variant(tmp_path / "torch-cpu")
    if remove == "digest":
        edit_metadata(folder, digest=None)
    else:
        (folder / METADATA_FILE).unlink()
    hashes = check(folder, Admission("allow"))
    assert set(FILES) <= hashes.keys()
    assert hashes["layers.py"] == hashlib.sha256(FILES["layers.py"]).hexdigest()


def test_a_variant_that_changed_has_another_result(tmp_path: Path):
    """What the loader compares at the import tells one content from another."""
    folder = make_variant(tmp_path / "torch-cpu")
    before = verify_unsigned(folder)
    (folder / "layers.py").write_bytes(b"class Treble: ...\n")
    relist(folder, Metadata("doubling", version=1, release="1.2.0", backend="cpu"))
    assert content_digest(verify_unsigned(folder)) != content_digest(before)


# -- what cannot be signed --------------------------------------------------------------------------


def test_signing_refuses_what_a_signature_would_not_cover(tmp_path: Path):
    folder = make_variant(tmp_path / "torch-cpu")
    with pytest.raises(MetadataError, match="is of release 1.2.0, not 1.3.0"):
        sign_variant(folder, ALICE, release="1.3.0")
    (folder / "layers.py").write_bytes(b"")
    with pytest.raises(IntegrityError, match="layers.py has other content"):
        sign_variant(folder, ALICE)
    edit_metadata(folder, digest=None)
    with pytest.raises(MetadataError, match="lists no digests"):
        sign_variant(folder, ALICE)
    (folder / METADATA_FILE).write_text('{"name": "doubling", "name": "halving"}')
    with pytest.raises(MetadataError, match="stands twice"):
        sign_variant(folder, ALICE)
    (folder / METADATA_FILE).unlink()
    with pytest.raises(MetadataError, match="build the repository before"):
        sign_variant(folder, ALICE)
    assert not (folder / SIGNATURE).exists()


@pytest.mark.parametrize("other", ["LAYERS.py", "native/Double.so"])
def test_signing_refuses_names_that_are_one_on_some_systems(tmp_path: Path, other: str):
    folder = make_variant(tmp_path / "torch-cpu")
    (folder / other).write_bytes(b"")
    if len(list_files(folder)) == len(FILES) + 1:
        pytest.skip("needs a file system that tells cases apart")
    relist(folder, Metadata("doubling", release="1.2.0"))
    with pytest.raises(MetadataError, match="one file on some systems"):
        sign_variant(folder, ALICE)


def test_errors_are_of_the_kinds_that_callers_expect(variant: Path):
    with pytest.raises(UnsignedError) as raised:
        verify_signed(variant, [BOB.public])
    assert isinstance(raised.value, TrustError) and isinstance(raised.value, PermissionError)
    assert verify_signed(variant, None).signers == (ALICE.public,)
    assert verify_signed(variant, [BOB.public, ALICE.public]).repository == "org/doubling"
