"""A client whose Hub does not answer asks mirrors, and believes them no more than it has to."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from kernels_hub import (
    HubError,
    IntegrityError,
    KernelsHubError,
    LayerRepository,
    Mode,
    RepositoryNotFoundError,
    TrustError,
    VersionError,
    get_kernel,
    get_locked_kernel,
    kernelize,
    report,
    use_kernel_forward_from_hub,
    use_kernel_mapping,
)
from kernels_hub.errors import HubPermissionError
from kernels_hub.hub import client
from kernels_hub.hub.endpoints import MIRRORS_VARIABLE, TOKENS_VARIABLE, Endpoint, endpoints_of
from kernels_hub.hub.locked_kernels import Dependency
from kernels_hub.hub.locking import check_tags, make_lock, write_lock
from kernels_hub.hub.release_log import _Memory
from kernels_hub.hub.releases import list_releases, yank
from kernels_hub.parsing import parse_json
from kernels_hub.repository.versions import VersionRequest
from kernels_hub.server.hub import Hub
from kernels_hub.server.mirror.follow import follow_once, following
from kernels_hub.server.mirror.origin import Origin
from kernels_hub.server.releases import Force
from kernels_hub.trust.policy_edit import add_rule
from tests.faulty_proxy import Changed, FaultyProxy, Gone, Seen, Status, json_changed
from tests.hub.place import Place
from tests.running_hub import RunningHub, start_hub

NOTHING_FAULTY = lambda _: None  # noqa: E731


@dataclass
class Site:
    """A Hub behind a proxy, a mirror of it behind another, and a client that knows both."""

    place: Place
    hub: FaultyProxy
    mirror: FaultyProxy
    root: Path

    def pull(self) -> None:
        """Let the mirror catch up."""
        with Hub(self.root, create=True) as hub, following(hub, self.place.hub.endpoint):
            only = [f"{self.place.organisation}*/*"]
            done = follow_once(hub, Origin(self.place.hub.endpoint), only)
            assert done.is_well, done

    def get(self, version: str = ">=1") -> object:
        client.forget()
        return self.place.get(version=version).VALUE

    def forget_requests(self) -> None:
        self.hub.seen.clear()
        self.mirror.seen.clear()

    def memory(self) -> _Memory:
        path = self.place.cache_of() / "release_log.json"
        return parse_json(path.read_bytes(), _Memory, where="memory")


@pytest.fixture(scope="module")
def served(hub: RunningHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    root = tmp_path_factory.mktemp("mirror") / "root"
    with Hub(root, create=True) as new, following(new, hub.endpoint):
        follow_once(new, Origin(hub.endpoint), ["nothing/yet"])
    with start_hub(root) as running:
        yield running


@pytest.fixture(scope="module")
def proxies(hub: RunningHub, served: RunningHub) -> Iterator[tuple[FaultyProxy, FaultyProxy]]:
    with FaultyProxy(hub.endpoint) as origin, FaultyProxy(served.endpoint) as mirror:
        yield origin, mirror


@pytest.fixture
def site(
    place: Place,
    served: RunningHub,
    proxies: tuple[FaultyProxy, FaultyProxy],
    monkeypatch: pytest.MonkeyPatch,
) -> Site:
    for proxy in proxies:
        proxy.fault, proxy.down = NOTHING_FAULTY, False
        proxy.seen.clear()
    place.at(proxies[0].endpoint)
    monkeypatch.setenv(MIRRORS_VARIABLE, proxies[1].endpoint)
    monkeypatch.delenv(TOKENS_VARIABLE, raising=False)
    return Site(place, *proxies, served.root)


# -- which addresses ----------------------------------------------------------------------------------

HUB = "https://hub.example.org"


def test_the_addresses_and_their_order(monkeypatch: pytest.MonkeyPatch):
    origin = Endpoint(HUB, is_origin=True)
    assert endpoints_of(HUB) == (origin,)
    a, b = Endpoint("http://a", is_origin=False), Endpoint("http://b:8", is_origin=False, token="hf_b")
    monkeypatch.setenv(MIRRORS_VARIABLE, "http://a/, http://b:8")
    monkeypatch.setenv(TOKENS_VARIABLE, "http://b:8=hf_b")
    assert endpoints_of(HUB) == (origin, a, b)
    monkeypatch.setenv(MIRRORS_VARIABLE, f"http://a,origin,{HUB}/,http://b:8,http://a")
    assert endpoints_of(HUB) == (a, origin, b)
    assert "hf_b" not in repr(endpoints_of(HUB))


@pytest.mark.parametrize(
    ("mirrors", "tokens", "match"),
    [
        ("a.example.org", "", "names 'a.example.org', which is no mirror's address"),
        ("ftp://a", "", "is no mirror's address"),
        ("http://", "", "is no mirror's address"),
        ("http://a:99999", "", "is no mirror's address"),
        ("http://me:hf_secret@a", "", "with credentials in it"),
        ("http://a", "hf_secret", "is not address=token"),
        ("http://a", "http://b=hf_secret", "a token for http://b, which KERNELS_HUB_MIRRORS does not name"),
        ("http://a", f"{HUB}=hf_secret", "a token for https://hub.example.org, which"),
    ],
)
def test_what_is_no_address(mirrors: str, tokens: str, match: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(MIRRORS_VARIABLE, mirrors)
    monkeypatch.setenv(TOKENS_VARIABLE, tokens)
    with pytest.raises(KernelsHubError, match=match) as raised:
        endpoints_of(HUB)
    assert "hf_secret" not in str(raised.value)


# -- who answers --------------------------------------------------------------------------------------


@use_kernel_forward_from_hub("Scale")
class Scale(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Gone(), id="away"),
        pytest.param(Status(429, {"Retry-After": "900"}), id="429"),
        pytest.param(Status(503), id="503", marks=pytest.mark.exhaustive),
        pytest.param(Changed(lambda _: b"<html>"), id="not a Hub's", marks=pytest.mark.exhaustive),
    ],
)
def test_a_mirror_answers_where_the_hub_does_not(fault: object, site: Site, caplog: pytest.LogCaptureFixture):
    site.place.release("1.0.0", 3)
    site.pull()
    site.hub.fault = lambda _: fault  # type: ignore[assignment, return-value]
    client.forget()
    layer = LayerRepository(site.place.repo(), layer_name="Scale", version=">=1", trust_remote_code=True)
    model = nn.Sequential(Scale())
    with (
        caplog.at_level(logging.WARNING),
        use_kernel_mapping({"Scale": {"cpu": layer}}, inherit_mapping=False),
    ):
        kernelize(model, mode=Mode.INFERENCE)
    assert model(torch.ones(2)).tolist() == [3, 3]
    (row,) = report(model).swapped
    assert (row.repository, row.revision) == (site.place.repo(), "1.0.0")
    assert row.served_by == site.mirror.endpoint
    assert f"with mirrors: {site.place.repo()} from {site.mirror.endpoint}" in str(report(model))
    said = [record.message for record in caplog.records if "the next address is asked" in record.message]
    assert len(said) == 1 and site.hub.endpoint in said[0]
    assert len(site.hub.seen) < 5, "an address that failed is asked last for a while"


def test_the_hub_answers_where_it_can(site: Site):
    site.place.release("1.0.0", 1)
    site.pull()
    assert site.get() == 1
    assert site.mirror.seen == []
    found = client.fetch(
        client.Request(site.place.repo(), VersionRequest.of("x/y", ">=1", None), None, None, True)
    )
    assert found.served_by == ()


def test_what_the_hub_says_is_its_word(site: Site):
    """A mirror may hold what the Hub does not show any more: to whom, is not the mirror's to say."""
    site.place.release("1.0.0", 1)
    site.pull()
    with pytest.raises(VersionError):
        site.get(">=2")
    with pytest.raises(RepositoryNotFoundError):
        site.place.get("missing", version=">=1")
    for status in (401, 403):
        site.hub.fault = lambda _, status=status: Status(status)  # type: ignore[misc]
        with pytest.raises(HubPermissionError):
            site.get()
    assert site.mirror.seen == []


def test_a_mirror_that_is_near_is_asked_first(site: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(MIRRORS_VARIABLE, f"{site.mirror.endpoint},origin")
    site.place.release("1.0.0", 1)
    site.pull()
    assert site.get() == 1
    assert site.hub.seen == []
    # What it does not have yet, the Hub has.
    site.place.release("1.1.0", 2)
    assert site.get("==1.1.0") == 2
    assert site.hub.seen != []
    # What the Hub cannot be asked for is not known to be missing.
    site.hub.down = True
    with pytest.raises(HubError, match=r"cannot be reached.*No mirror answers in its place") as raised:
        site.get("==1.2.0")
    assert not isinstance(raised.value, RepositoryNotFoundError)
    site.pull()
    site.place.release("1.2.0", 3)
    site.pull()
    assert site.get("==1.2.0") == 3


def test_nobody_answers(site: Site):
    site.hub.down = site.mirror.down = True
    with pytest.raises(HubError, match="No mirror answers in its place") as raised:
        site.get()
    assert site.hub.endpoint in str(raised.value) and site.mirror.endpoint in str(raised.value)


def test_changes_go_to_the_hub_alone(site: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", site.place.api.token)
    monkeypatch.setenv(MIRRORS_VARIABLE, f"{site.mirror.endpoint},origin")
    site.place.release("1.0.0", 1)
    site.pull()
    assert yank(site.place.repo(), "1.0.0", "wrong")
    assert site.mirror.seen == []
    site.hub.down = True
    with pytest.raises(HubError):
        yank(site.place.repo(), "1.0.0", undo=True)
    assert site.mirror.seen == []
    assert [row.yanked for row in list_releases(site.place.repo()).releases] == [None]  # as the mirror has it


# -- tokens -------------------------------------------------------------------------------------------


def test_a_token_goes_only_where_it_belongs(site: Site, monkeypatch: pytest.MonkeyPatch):
    token = site.place.api.token
    monkeypatch.setenv("HF_TOKEN", token)
    site.place.release("1.0.0", 1)
    site.pull()
    assert site.get() == 1
    assert {one.token for one in site.hub.seen} == {token}
    site.place.release("1.1.0", 2)
    site.pull()
    site.hub.fault = lambda request: Gone() if "/resolve/" in request.path else Status(503)
    assert site.get() == 2
    assert site.mirror.seen and {one.token for one in site.mirror.seen} == {None}
    assert not any(token in value for one in site.mirror.seen for value in one.headers.values())
    with Hub(site.root) as hub:
        if hub.accounts.find("reader") is None:
            hub.accounts.add_user("reader")
        own = hub.accounts.new_token("reader", "read")[0]
    monkeypatch.setenv(TOKENS_VARIABLE, f"{site.mirror.endpoint}={own}")
    site.place.release("1.2.0", 3)
    site.pull()
    site.forget_requests()
    assert site.get() == 3
    assert {one.token for one in site.mirror.seen} == {own}
    assert {one.token for one in site.hub.seen} == {token}


# -- pins and content ---------------------------------------------------------------------------------


def fresh_cache(site: Site, folder: Path) -> None:
    from huggingface_hub import constants

    site.place.monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    site.place.monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    client.forget()


def test_what_a_lock_pins_is_compared_whoever_answers(site: Site, tmp_path: Path):
    site.place.release("1.0.0", 1)
    site.pull()
    lockfile = tmp_path / "kernels.lock"
    write_lock(make_lock([Dependency(site.place.repo(), VersionRequest.of("x/y", ">=1", None))]), lockfile)
    site.hub.down = True
    wrong = Changed(lambda body: body.replace(b"VALUE = 1", b"VALUE = 9"))
    site.mirror.fault = lambda request: wrong if request.path.endswith("/__init__.py") else None
    fresh_cache(site, tmp_path / "first")
    with pytest.raises(IntegrityError, match="nothing of its kernel was imported"):
        get_locked_kernel(site.place.repo(), lockfile=lockfile)
    # Another mirror has what was pinned: it is asked in place of the one that lied.
    with FaultyProxy(site.mirror.target) as other:
        site.place.monkeypatch.setenv(MIRRORS_VARIABLE, f"{site.mirror.endpoint},{other.endpoint}")
        fresh_cache(site, tmp_path / "second")
        site.forget_requests()
        assert get_locked_kernel(site.place.repo(), lockfile=lockfile).VALUE == 1
        assert site.mirror.paths("/__init__.py") != [] and other.paths("/__init__.py") != []


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        pytest.param(
            *("/tree/", json_changed(lambda rows: [row for row in rows if "layers" not in row["path"]])),
            id="one less",
        ),
        pytest.param("/objects", Changed(lambda body: body.replace(b"tree ", b"Tree ", 1)), id="changed"),
        *(
            pytest.param(word, fault, id=name, marks=pytest.mark.exhaustive)
            for name, word, fault in (
                ("others", "/tree/", json_changed(lambda rows: [{**row, "oid": "0" * 40} for row in rows])),
                (
                    "more",
                    "/tree/",
                    json_changed(lambda rows: [*rows, {**rows[-1], "path": "build/torch-cpu/x"}]),
                ),
                ("none", "/tree/", Status(404, {"X-Error-Code": "EntryNotFound"})),
                ("cut", "/objects", Changed(lambda body: body[:-1])),
                ("nothing", "/objects", Changed(lambda _: b"")),
                ("another Hub", "/objects", Status(404)),
            )
        ),
    ],
)
def test_a_mirror_proves_what_is_in_a_commit(word: str, fault: object, site: Site):
    """Who pins a commit alone, without a lock, gets that commit from whoever answers."""
    site.place.release("1.0.0", 1)
    commit = site.place.put(2, files={"deep/er.py": "x = 1\n"})
    site.pull()
    site.hub.down = True
    site.mirror.fault = lambda request: fault if word in request.path else None  # type: ignore[assignment, return-value]
    with pytest.raises(HubError, match="cannot prove what is in"):
        site.place.get(revision=commit)
    site.mirror.fault = NOTHING_FAULTY
    client.forget()
    assert site.place.get(revision=commit).VALUE == 2


def test_a_lock_is_not_out_of_date_for_a_mirror_that_is_behind(site: Site, monkeypatch: pytest.MonkeyPatch):
    site.pull()
    site.place.release("1.0.0", 1)
    monkeypatch.setenv(MIRRORS_VARIABLE, f"{site.mirror.endpoint},origin")
    lock = make_lock([Dependency(site.place.repo(), VersionRequest.of("x/y", ">=1", None))])
    assert check_tags(lock) is None
    site.hub.down = True
    assert "cannot be reached" in (check_tags(lock) or "")


# -- the release log ----------------------------------------------------------------------------------


def test_a_mirror_that_is_behind_is_fine_and_forgets_nothing(site: Site):
    site.place.release("1.0.0", 1)
    site.place.release("1.1.0", 2)
    site.pull()
    site.place.release("1.2.0", 3)
    assert site.get() == 3
    with site.place.hub.administer() as hub:
        repository = hub.repositories.find("kernel", *site.place.repo().split("/"))
        assert repository is not None
        hub.changes.delete_tag(repository, "v1.1.0", "maker", force=Force("a leak"))
    client.forget()
    assert [row.tag for row in list_releases(site.place.repo()).releases] == ["v1.2.0", "v1.0.0"]
    site.hub.down = True
    client.forget()
    found = list_releases(site.place.repo())
    # v1.1.0 is still there at the mirror; that it was deleted is known here.
    assert [row.tag for row in found.releases] == ["v1.0.0"]
    assert found.log is not None and [entry.kind for entry in found.log.later] == ["release", "delete"]
    assert site.get() == 1
    assert site.get("==1.2.0") == 3, "it is in the cache, and what is known of it stays known"
    assert [entry.tag for entry in site.memory().hubs[site.hub.endpoint]][-1] == "v1.1.0"


def test_a_yank_that_the_mirror_does_not_know_yet_counts(site: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", site.place.api.token)
    site.place.release("1.0.0", 1)
    site.place.release("1.1.0", 2)
    site.pull()
    yank(site.place.repo(), "1.1.0", "wrong")
    assert site.get() == 1
    site.hub.down = True
    assert site.get() == 1


def rewritten(document: dict[str, object]) -> dict[str, object]:
    """A log in which somebody else released everything, sound in itself; none of an empty page."""
    from kernels_hub.repository.release_entry import START, ReleaseEntry

    entries = [msgspec.convert(entry, ReleaseEntry) for entry in document["entries"]]  # type: ignore[attr-defined]
    previous, new = START, []
    for entry in entries:
        new.append(msgspec.structs.replace(entry, actor="somebody", previous=previous))
        previous = new[-1].hash
    if not new or new[0].index:
        return {**document, "head": "f" * 64}
    return {**document, "entries": [msgspec.to_builtins(one) for one in new], "head": previous}


def forked(request: Seen) -> object:
    return json_changed(rewritten) if "/release-log" in request.path else None


def test_a_mirror_with_another_log_is_refused(site: Site, caplog: pytest.LogCaptureFixture):
    site.place.release("1.0.0", 1)
    site.pull()
    assert site.get() == 1
    site.hub.down = True
    site.mirror.fault = forked  # type: ignore[assignment]
    client.forget()
    with caplog.at_level(logging.WARNING), pytest.raises(HubError, match="is refused"):
        list_releases(site.place.repo())
    assert any(f"the mirror {site.mirror.endpoint} is not asked for now" in r.message for r in caplog.records)
    site.hub.down = False
    client.forget()
    assert [row.tag for row in list_releases(site.place.repo()).releases] == ["v1.0.0"]


def test_a_mirror_that_told_otherwise_than_the_hub_does_is_refused_later(
    site: Site, caplog: pytest.LogCaptureFixture
):
    """First seen while the Hub was away; the Hub has the last word when it is back."""
    site.place.release("1.0.0", 1)
    site.pull()
    site.hub.down = True
    site.mirror.fault = forked  # type: ignore[assignment]
    assert [row.tag for row in list_releases(site.place.repo()).releases] == ["v1.0.0"]
    assert set(site.memory().hubs) == {site.mirror.endpoint}, "a mirror's word is not taken for the Hub's"
    site.hub.down = False
    client.forget()
    with caplog.at_level(logging.WARNING):
        list_releases(site.place.repo())
    assert any("told another release log" in record.message for record in caplog.records)
    site.hub.down, site.mirror.fault = True, NOTHING_FAULTY
    client.forget()
    with pytest.raises(HubError, match="the mirror has told another release log"):
        list_releases(site.place.repo())


# -- trust --------------------------------------------------------------------------------------------


def test_rules_are_about_the_hub_whoever_answers(site: Site):
    site.place.release("1.0.0", 1)
    site.pull()
    site.hub.down = True
    add_rule("allow", site.place.repo(), endpoint=site.mirror.endpoint)
    with pytest.raises((TrustError, HubError)):
        get_kernel(site.place.repo(), version=">=1")
    add_rule("allow", site.place.repo(), endpoint=site.hub.endpoint)
    client.forget()
    assert get_kernel(site.place.repo(), version=">=1").VALUE == 1
    add_rule("deny", site.place.repo(), endpoint=site.hub.endpoint)
    client.forget()
    with pytest.raises(TrustError, match="denies it"):
        get_kernel(site.place.repo(), version=">=1")


def test_no_mirror_is_asked_who_is_a_trusted_publisher(site: Site, caplog: pytest.LogCaptureFixture):
    trusted = f"{site.place.organisation}t"
    site.place.hub.organisation(trusted, "maker", trusted=True)
    site.place.organisation = trusted
    site.place.release("1.0.0", 1)
    site.pull()
    site.hub.down = True
    with pytest.raises(HubError, match="is a trusted publisher"):
        get_kernel(site.place.repo(), version=">=1")
    assert site.mirror.paths("/api/organizations/") == []
    site.hub.down = False
    client.forget()
    assert get_kernel(site.place.repo(), version=">=1").VALUE == 1
    site.place.release("1.1.0", 2)
    site.pull()
    site.hub.down = True
    client.forget()
    with caplog.at_level(logging.WARNING):
        assert get_kernel(site.place.repo(), version=">=1").VALUE == 2
    assert any("it was one when it was last asked" in record.message for record in caplog.records)
