"""Which tag or branch a reference means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from kernels_hub.errors import VersionError
from kernels_hub.repository.versions import Pinned, Refs, VersionRequest, is_commit, parse_tag

TAGS = ["v0.1.0", "v0.2.0", "v1.0.0", "v1.1.0", "v1.2.0", "v1.10.0", "v2.0.0rc1", "nightly", "v3", "v1.2"]
REFS = Refs(
    {"main": "m" * 40, "v0": "a" * 40, "v1": "b" * 40, "feature/x": "c" * 40},
    {tag: f"{number:040x}" for number, tag in enumerate(TAGS)},
)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def choose(
    version: str | int | None = None, revision: str | None = None, yanked: tuple[str, ...] = ()
) -> str | None:
    found = VersionRequest.of("org/name", version, revision).candidates(REFS, yanked)
    return found[0].ref if found else None


@pytest.mark.parametrize(
    ("version", "ref"),
    [
        (">=1", "v1.10.0"),
        (">=1,<1.10", "v1.2.0"),
        ("==1.2.0", "v1.2.0"),
        ("~=1.1", "v1.10.0"),
        ("~=1.1.0", "v1.1.0"),
        ("==1.*", "v1.10.0"),
        ("<1", "v0.2.0"),
        ("!=1.10.0", "v1.2.0"),
        (">=2.0.0rc1", "v2.0.0rc1"),
        (">=2", None),
        (">99", None),
        ("", "v1.10.0"),
        (0, "v0"),
        (1, "v1"),
        (7, None),
    ],
)
def test_versions(version: str | int, ref: str | None) -> None:
    assert choose(version) == ref


@pytest.mark.parametrize(
    ("revision", "ref"),
    [
        (None, "main"),
        ("main", "main"),
        ("feature/x", "feature/x"),
        ("v1", "v1"),
        ("v1.2.0", "v1.2.0"),
        ("refs/tags/v1.2.0", "v1.2.0"),
        ("nightly", "nightly"),
        (COMMIT, COMMIT),
        ("0123456", None),
        ("gone", None),
    ],
)
def test_revisions(revision: str | None, ref: str | None) -> None:
    assert choose(None, revision) == ref


def test_a_yanked_release_is_chosen_only_by_its_own_name() -> None:
    assert choose(">=1", yanked=("1.10.0",)) == "v1.2.0"
    assert choose("==1.10.0", yanked=("1.10.0",)) == "v1.10.0"
    assert choose("==1.*", yanked=("1.10.0", "1.2.0")) == "v1.1.0"
    assert choose(None, "v1.10.0", yanked=("1.10.0",)) == "v1.10.0"


def test_candidates_are_ordered_best_first() -> None:
    found = VersionRequest("<1.3").candidates(REFS)
    assert [pinned.release for pinned in found] == ["1.2.0", "1.1.0", "1.0.0", "0.2.0", "0.1.0"]
    assert found[0].commit == REFS.tags["v1.2.0"]


numbers = st.integers(0, 12)
versions = st.builds("{}.{}.{}".format, numbers, numbers, numbers)


@given(
    st.lists(versions, max_size=8, unique=True),
    st.sampled_from([">=", "<", "==", "!=", "~=", "<=", ">"]),
    versions,
)
def test_choosing_is_pep_440s(releases: list[str], operator: str, bound: str) -> None:
    refs = Refs({}, {f"v{release}": f"{n:040x}" for n, release in enumerate(releases)})
    specifier = f"{operator}{bound}"
    fitting = sorted(filter(SpecifierSet(specifier).contains, map(Version, releases)), reverse=True)
    found = VersionRequest.of("org/name", specifier, None).candidates(refs)
    assert [pinned.release for pinned in found] == [str(version) for version in fitting]


@pytest.mark.parametrize(
    ("version", "revision", "message"),
    [
        (">=1", "main", "not both"),
        ("1.2", None, "not a specifier"),
        (">=", None, "not a specifier"),
        (-1, None, "negative"),
        (True, None, "a version is"),
        (1.2, None, "a version is"),
        (None, "", "a revision is"),
        (None, 3, "a revision is"),
    ],
)
def test_what_does_not_parse(version: object, revision: object, message: str) -> None:
    with pytest.raises(VersionError, match=message) as caught:
        VersionRequest.of("org/name", version, revision)
    assert isinstance(caught.value, ValueError)
    assert "org/name" in str(caught.value)


def test_a_missing_version_comes_with_the_nearest() -> None:
    error = VersionRequest(">=1.3,<1.5").missing("org/name", REFS, ("1.0.0",))
    assert "org/name has no release >=1.3,<1.5" in str(error)
    assert "1.10.0" in str(error) and "1.2.0" in str(error) and "1.0.0 is yanked" in str(error)
    assert "v1" in str(VersionRequest(7).missing("org/name", REFS))
    assert "nightly" in str(VersionRequest(revision="nightlies").missing("org/name", REFS))
    assert "none at all" in str(VersionRequest().missing("org/name", Refs()))
    assert "its branches are main" in str(VersionRequest(">=1").missing("org/name", Refs({"main": COMMIT})))


def test_names() -> None:
    assert parse_tag("v1.2.3") == Version("1.2.3")
    assert parse_tag("v1.2.3.post1") == Version("1.2.3.post1")
    assert [parse_tag(tag) for tag in ("1.2.3", "v1.2", "v1", "v1.2.x", "release-1.2.3")] == [None] * 5
    assert is_commit(COMMIT) and not is_commit(COMMIT[:39]) and not is_commit(COMMIT.upper())
    assert VersionRequest("==1.2.0").release == "v1.2.0"
    assert [VersionRequest(text).release for text in ("==1.*", ">=1.2.0", "==1.2", "==1.2.0,!=3")] == [
        None
    ] * 4
    assert [Pinned(COMMIT, ref).version for ref in ("v1.2.0", "v1", "main", COMMIT)] == [
        "1.2.0",
        1,
        None,
        None,
    ]
    assert [
        str(VersionRequest(1)),
        str(VersionRequest(">=1")),
        str(VersionRequest()),
        str(VersionRequest(revision="x")),
    ] == [
        "@v1",
        " >=1",
        "@main",
        "@x",
    ]
