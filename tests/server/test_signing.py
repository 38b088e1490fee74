"""Addresses that are their own credential: only what the server signed, where it was signed for, for as long."""

from __future__ import annotations

import hashlib
import http.client
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote_to_bytes, urlencode, urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_hub.server.accounts import Token
from kernels_hub.server.maintenance import collect_garbage
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.signing import (
    Address,
    CompleteStored,
    CompleteUpload,
    Signer,
    UploadFile,
    UploadPart,
    UploadXet,
)
from kernels_hub.server.sweep import sweep
from tests.combinations import all_but
from tests.fuzz.harness import budget, limited
from tests.fuzz.mutations import HOSTILE_TEXTS
from tests.running_hub import RunningHub, start_hub

PART = 1 << 16
LIMITS = {"large_from_bytes": 1024, "part_bytes": PART, "max_requests_per_minute": 0}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with start_hub(tmp_path_factory.mktemp("signing") / "root", limits=LIMITS) as running:
        for user in ("ada", "eve"):
            headers = {"Authorization": f"Bearer {running.token(user)}"}
            for name in ("one", "two"):
                body = {"name": name, "organization": user, "private": True}
                httpx.post(
                    f"{running.endpoint}/api/repos/create", json=body, headers=headers
                ).raise_for_status()
        yield running


def batch(hub: RunningHub, token: str, repository: str, *contents: bytes) -> list[dict]:
    """The actions of an LFS batch."""
    objects = [{"oid": hashlib.sha256(data).hexdigest(), "size": len(data)} for data in contents]
    answer = httpx.post(
        f"{hub.endpoint}/{repository}.git/info/lfs/objects/batch",
        json={"operation": "upload", "transfers": ["basic", "multipart"], "objects": objects},
        headers={"Authorization": f"Bearer {token}"},
    )
    return [item.get("actions", {}) for item in answer.raise_for_status().json()["objects"]]


def send_parts(upload: dict, data: bytes) -> dict:
    """Upload every part; the body of the completion."""
    parts = []
    for number in range(1, -(-len(data) // PART) + 1):
        piece = data[(number - 1) * PART : number * PART]
        answer = httpx.put(upload["header"][str(number)], content=piece).raise_for_status()
        parts.append({"partNumber": number, "etag": answer.headers["etag"]})
    return {"oid": hashlib.sha256(data).hexdigest(), "parts": parts}


def has(hub: RunningHub, repository: str, data: bytes) -> bool:
    with hub.administer() as opened:
        found = opened.repositories.find("model", *repository.split("/"))
        return opened.large_files.size(found, hashlib.sha256(data).hexdigest()) is not None


# -- what was broken once


@pytest.mark.own_addresses
def test_one_upload_cannot_remove_those_of_others(hub: RunningHub):
    ada, eve = hub.token("ada"), hub.token("eve")
    data, mine = os.urandom(3 * PART), os.urandom(2 * PART)
    theirs = batch(hub, ada, "ada/one", data)[0]["upload"]
    body = send_parts(theirs, data)
    (upload,) = batch(hub, eve, "eve/one", mine)
    single = batch(hub, eve, "eve/one", b"x" * 2000)[0]["upload"]["href"]
    for address in (upload["upload"]["href"], single):
        path, query = address.split("?")
        path = path if path.endswith("/complete") else f"{path}/complete"
        for more in ("&at=", "&at=/complete", "&upload=", "&upload=.", "&upload=.."):
            assert httpx.post(f"{path}?{query}{more}", json=body).status_code == 403
    assert (hub.root / "multipart").is_dir()
    assert httpx.post(theirs["href"], json=body).status_code == 200 and has(hub, "ada/one", data)


def test_an_address_writes_into_its_own_repository_only(hub: RunningHub):
    eve, data = hub.token("eve"), os.urandom(2000)
    with hub.administer() as opened:
        victim = opened.repositories.find("model", "ada", "two")
        mine = opened.repositories.find("model", "eve", "one")
    oid = hashlib.sha256(data).hexdigest()
    href = batch(hub, eve, "eve/one", data)[0]["upload"]["href"]
    query = href.split("?")[1]
    for path in (
        f"/lfs/{victim.id}/{oid}",
        f"/lfs/{victim.id}/{oid}/complete",
        f"/lfs/{victim.id}/{oid}/part/1",
    ):
        for more in ("", f"&repository={mine.id}&oid={oid}&at=", f"&repository={mine.id}", f"&oid={oid}"):
            method = "POST" if path.endswith("complete") else "PUT"
            assert (
                httpx.request(method, f"{hub.endpoint}{path}?{query}{more}", content=data).status_code == 403
            )
    assert not has(hub, "ada/two", data)


@pytest.mark.own_addresses
@pytest.mark.parametrize("way", all_but(["revoked", "expired", "no member any more"], "expired"))
def test_an_address_ends_with_its_token(hub: RunningHub, way: str):
    name = f"org-{way.split(maxsplit=1)[0]}"
    hub.organisation(name, "ada")
    with hub.administer() as opened:
        opened.accounts.set_member(name, "eve", "write")
        end = time.time() + 3 if way == "expired" else None
        secret, token = opened.accounts.new_token("eve", "write", expires=end)
    headers = {"Authorization": f"Bearer {hub.token('ada')}"}
    httpx.post(f"{hub.endpoint}/api/repos/create", json={"name": "r", "organization": name}, headers=headers)
    first, second, large = os.urandom(2000), os.urandom(2000), os.urandom(2 * PART)
    actions = batch(hub, secret, f"{name}/r", first, second, large)
    assert httpx.put(actions[0]["upload"]["href"], content=first).status_code == 200
    body = send_parts(actions[2]["upload"], large)
    with hub.administer() as opened:
        if way == "revoked":
            opened.accounts.remove_token(token.id)
        elif way == "expired":
            assert actions[0]["upload"]["expires_in"] <= 3
            time.sleep(max(0.0, end - time.time()) + 1.1)
        else:
            opened.accounts.set_member(name, "eve", None)
    assert httpx.put(actions[1]["upload"]["href"], content=second).status_code == 403
    assert httpx.post(actions[2]["upload"]["href"], json=body).status_code == 403
    assert httpx.put(actions[2]["upload"]["header"]["1"], content=large[:PART]).status_code == 403
    assert not has(hub, f"{name}/r", second) and not has(hub, f"{name}/r", large)


@pytest.mark.own_addresses
def test_a_completed_upload_that_is_sent_again_changes_nothing(hub: RunningHub):
    ada, data, small = hub.token("ada"), os.urandom(2 * PART + 5), os.urandom(3000)
    others = set((hub.root / "multipart").iterdir())
    actions = batch(hub, ada, "ada/one", data, small)
    upload = actions[0]["upload"]
    body = send_parts(upload, data)
    for _ in range(3):
        assert httpx.post(upload["href"], json=body).status_code == 200
        assert httpx.put(actions[1]["upload"]["href"], content=small).status_code == 200
        again = httpx.put(upload["header"]["1"], content=data[:PART])
        assert again.status_code == 200 and again.headers["etag"] == body["parts"][0]["etag"]
        wrong = httpx.put(upload["header"]["1"], content=os.urandom(PART))
        assert wrong.status_code == 200, "it is read and kept nowhere"
    assert set((hub.root / "multipart").iterdir()) == others
    with hub.administer() as opened:
        repository = opened.repositories.find("model", "ada", "one")
        assert opened.large_files.read(repository, hashlib.sha256(data).hexdigest()) == data


# -- clocks


SIGNER = Signer(b"k" * 32, 3600)
TOKEN = Token("a" * 12, "ada", "write", None, 0.0, None)


def test_clocks_an_hour_off(monkeypatch: pytest.MonkeyPatch):
    path = {"repository": "0" * 32, "oid": "1" * 64}
    address = UploadFile(**path, token=TOKEN.id, expires=SIGNER.expiry(TOKEN), size=5)
    query, real = SIGNER.query(address), time.time()
    for offset, words in (
        (0, None),
        (-50, None),
        (3500, None),
        (7200, "expired 60 min ago"),
        (-3600, "clock was ahead"),
    ):
        monkeypatch.setattr(time, "time", lambda offset=offset: real + offset)
        if words is None:
            assert SIGNER.check(UploadFile, path, query) == address
        else:
            with pytest.raises(Refusal, match=words) as refused:
                SIGNER.check(UploadFile, path, query)
            assert refused.value.status == 403 and "UTC" in refused.value.message


def test_an_address_never_lasts_longer_than_its_token():
    end = time.time() + 60
    assert SIGNER.expiry(Token("a" * 12, "ada", "write", None, 0.0, end)) == int(end)


# -- one text for each record


def records(kind: type[Address]) -> st.SearchStrategy[Address]:
    fields = {
        "repository": st.sampled_from(["0" * 32, "1" * 32]),
        "token": st.sampled_from(["a" * 12, "b" * 12]),
        "expires": st.integers(10**9, 10**9 + 2),
        "oid": st.sampled_from(["0" * 64, "1" * 64]),
        "size": st.integers(0, 2),
        "upload": st.sampled_from(["2" * 32, "3" * 32]),
        "number": st.integers(1, 2),
        "part_bytes": st.integers(1, 2),
        "remote": st.sampled_from(["a", "a.b-c", "~"]),
    }
    return st.builds(kind, **{name: fields[name] for name in kind.__struct_fields__})


ANY = st.one_of(
    *(records(kind) for kind in (UploadFile, UploadPart, CompleteUpload, CompleteStored, UploadXet))
)


@given(ANY, ANY)
def test_two_records_never_share_a_signature(one: Address, other: Address):
    assert (SIGNER._signature(one) == SIGNER._signature(other)) == (type(one) is type(other) and one == other)


# -- anything else that lies among the uploads


def test_a_server_starts_and_collects_whatever_lies_among_the_uploads(tmp_path: Path):
    root = tmp_path / "root"
    with start_hub(root) as running, running.administer() as opened:
        ada = running.token("ada")
        headers = {"Authorization": f"Bearer {ada}"}
        httpx.post(
            f"{running.endpoint}/api/repos/create", json={"name": "r"}, headers=headers
        ).raise_for_status()
        repository = opened.repositories.find("model", "ada", "r")
    old, odd = time.time() - 10**6, root / "multipart" / ("0" * 32)
    odd.mkdir()
    for name in ("x.part", "-1.part", "1.part", "data", "\x1b[31m", "a b"):
        (odd / name).write_bytes(b"\xff\xfe")
    (odd / "2.part").mkdir()
    os.utime(odd, (old, old))
    (root / "multipart" / "a file").write_text("")
    (root / "multipart" / "loop").symlink_to(root / "multipart")
    (root / "multipart" / "nowhere").symlink_to(root / "missing")
    (root / "incoming" / "corner" / "lock").mkdir(parents=True)
    (root / "incoming" / "link").symlink_to(tmp_path)
    (root / "locks" / "folder").mkdir()
    (root / "xet" / "x" / "٣").mkdir(parents=True)
    (root / "xet" / "file").write_text("")
    lost = root / "repositories" / "half made"
    lost.mkdir()
    (root / "repositories" / "a file").write_text("")
    for missing in ("", "multipart", "incoming", "locks"):
        if missing:
            (root / missing).rename(tmp_path / missing)
        with start_hub(root) as running, running.administer() as opened:
            sweep(opened)
            collect_garbage(opened)
            assert httpx.get(f"{running.endpoint}/api/models/ada/r", headers=headers).status_code == 200
    assert repository is not None and (tmp_path / "multipart" / "loop").is_symlink()


# -- any change of any address


class Target(NamedTuple):
    """A signed request: changed in any way, it must be refused."""

    method: str
    path: str
    query: str
    body: bytes


def targets(hub: RunningHub) -> list[Target]:
    eve, small, large = hub.token("eve"), os.urandom(2000), os.urandom(2 * PART)
    single, parts = batch(hub, eve, "eve/one", small, large)
    body = send_parts(parts["upload"], large)
    return [
        Target("PUT", *urlsplit(single["upload"]["href"])[2:4], small),
        Target("PUT", *urlsplit(parts["upload"]["header"]["2"])[2:4], large[PART:]),
        Target(
            "POST",
            *urlsplit(parts["upload"]["href"])[2:4],
            httpx.Request("POST", "http://x", json=body).read(),
        ),
    ]


PLACES = (
    "repository",
    "oid",
    "at",
    "upload",
    "size",
    "number",
    "part_bytes",
    "token",
    "expires",
    "type",
    "signature",
)
ODD = tuple(quote(text.encode("utf-8", "surrogatepass"), safe="") for text in HOSTILE_TEXTS)
SPELLINGS = (
    *ODD,
    "%2e%2e",
    "%2E%2E%2F",
    "..",
    "%00",
    "%252e",
    "a" * 65_536,
    "+5",
    "05",
    "5%20",
    "%d9%a5",
    "1e3",
    "0x5",
)


def change(target: Target, others: list[str], chance: random.Random) -> tuple[str, str, str]:
    """Another method, path and query: usually one change, at times two, at times none in meaning."""
    method, path, query = target.method, target.path, target.query
    for _ in range(chance.choice((1, 1, 1, 2))):
        pairs = [pair.split("=", 1) for pair in query.split("&")]
        at = chance.randrange(len(pairs))
        segments = path.split("/")
        part = chance.randrange(1, len(segments))
        match chance.randrange(14):
            case 0:
                pairs.append([chance.choice(PLACES), chance.choice((*SPELLINGS, *others, pairs[at][-1]))])
            case 1:
                pairs.insert(0, list(pairs[at]))
            case 2:
                pairs[at][-1] = chance.choice(SPELLINGS)
            case 3:
                value = pairs[at][-1]
                spot = chance.randrange(len(value) + 1)
                pairs[at][-1] = (
                    value[:spot]
                    + chance.choice("0123456789abcdefAF.-%2f")
                    + value[spot + chance.randrange(2) :]
                )
            case 4:
                del pairs[at]
            case 5:
                chance.shuffle(pairs)
            case 6:
                pairs[at][0] = chance.choice((*PLACES, "", pairs[at][0].upper()))
            case 7:
                segments[part] = chance.choice((*SPELLINGS, *others))
            case 8:
                value = segments[part]
                spot = chance.randrange(len(value) + 1)
                segments[part] = value[:spot] + chance.choice("0aF./%") + value[spot + chance.randrange(2) :]
            case 9:
                segments += chance.choice((["complete"], ["part", "1"], ["part", "9"], [""], ["..", "x"]))
            case 10:
                del segments[part]
            case 11:
                method = chance.choice(("PUT", "POST", "GET", "DELETE", "PATCH", "put"))
            case 12:
                segments[part] = "".join(
                    f"%{ord(c):02x}" if chance.random() < 0.3 else c for c in segments[part]
                )
            case _:
                pairs[at][-1] = "".join(
                    f"%{ord(c):02X}" if chance.random() < 0.3 else c for c in pairs[at][-1]
                )
        path, query = "/".join(segments) or "/", "&".join("=".join(pair) for pair in pairs) or "x"
    return method, path, query


def meaning(method: str, path: str, query: str) -> object:
    return (
        method,
        unquote_to_bytes(path),
        sorted(parse_qsl(query, keep_blank_values=True, errors="surrogateescape")),
    )


def files(root: Path) -> set[str]:
    return {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if not path.name.startswith("hub.sqlite") and "incoming" not in path.parts
    }


@pytest.mark.own_addresses
def test_no_changed_address_is_accepted(hub: RunningHub):
    chance, asked = random.Random(7), 0
    with hub.administer() as opened:
        others = [opened.repositories.find("model", *name).id for name in (("ada", "one"), ("eve", "two"))]
    others += ["0" * 64, "complete", "part"]
    address = urlsplit(hub.endpoint)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=20)
    count, same = budget(300, 10_000), 0
    fresh = targets(hub)
    before = files(hub.root)
    while asked < count:
        target = chance.choice(fresh)
        method, path, query = change(target, others, chance)
        asked += 1
        try:
            with limited("address", (method, path[:500], query[:500]), hub.process.pid):
                connection.request(
                    method, f"{path}?{query}", target.body, {"Content-Type": "application/json"}
                )
                answer = connection.getresponse()
                answer.read()
        except (ConnectionError, http.client.HTTPException):
            connection.close()  # the server refused before it had read everything
            continue
        assert answer.status < 500, (answer.status, method, path[:500], query[:500])
        if answer.status < 400 and path.startswith("/lfs/"):
            assert meaning(method, path, query) == meaning(*target[:3]), (method, path[:500], query[:500])
            same += 1
            fresh = targets(hub)  # what was completed is no target any more
            before = files(hub.root)
    connection.close()
    assert files(hub.root) == before
    assert same >= count // 100, "some changes keep the meaning, and so are accepted"
    assert not has(hub, "ada/one", fresh[0].body) and not has(hub, "eve/two", fresh[0].body)


def test_no_changed_credential_of_xet_is_accepted(hub: RunningHub):
    chance, eve = random.Random(9), hub.token("eve")
    asked = (
        httpx.get(
            f"{hub.endpoint}/api/models/eve/one/xet-write-token/main",
            headers={"Authorization": f"Bearer {eve}"},
        )
        .raise_for_status()
        .json()
    )
    with hub.administer() as opened:
        other = opened.repositories.find("model", "ada", "one").id
    target = Target("POST", urlsplit(asked["casUrl"]).path + "/v1/shards", asked["accessToken"], b"")
    with httpx.Client(base_url=hub.endpoint) as client:
        own = client.post(target.path, headers={"Authorization": f"Bearer {target.query}"})
        assert own.status_code == 400, "authorized; but no shard"
        moved = target.path.replace(target.path.split("/")[2], other)
        assert client.post(moved, headers={"Authorization": f"Bearer {target.query}"}).status_code == 403
        for _ in range(budget(100, 2000)):
            _, _, query = change(target, [other], chance)
            if len(query) > 16_000 or not query.isascii():
                continue
            with limited("credential", query[:500], hub.process.pid):
                answer = client.post(target.path, headers={"Authorization": f"Bearer {query}"})
            if meaning("", "", query) != meaning("", "", target.query):
                assert answer.status_code in (401, 403), (answer.status_code, query)


def test_queries_are_encoded():
    address = UploadXet(repository="0" * 32, token="a" * 12, expires=5)
    assert dict(parse_qsl(SIGNER.query(address))).keys() == {"token", "expires", "signature"}
    assert urlencode(parse_qsl(SIGNER.query(address))) == SIGNER.query(address)
