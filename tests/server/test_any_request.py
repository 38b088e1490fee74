"""Whatever is asked at whatever address: an answer that blames the right side, and never 500."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_hub.server.app import routes
from tests.running_hub import RunningHub

SEGMENTS = st.one_of(
    st.sampled_from(
        [
            "acme",
            "any",
            "main",
            "models",
            "kernels",
            "v1.0.0",
            "README.md",
            ".gitattributes",
            "..",
            "a" * 300,
            "0" * 40,
        ]
    ),
    st.text(max_size=8),
)
VALUES: st.SearchStrategy[object] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.just("main"),
    st.just("kernel"),
)
KEYS = (
    "name organization type private gated fromRepo toRepo files paths tag message startingPoint operation objects "
    "oid size user status content key value visibility overwrite hash_algo transfers"
).split()
BODIES = st.one_of(
    st.binary(max_size=40),
    st.dictionaries(
        st.sampled_from(KEYS),
        st.one_of(VALUES, st.lists(st.dictionaries(st.sampled_from(["path", "oid", "size", "sample"]), VALUES), max_size=2)),
        max_size=5,
    ).map(lambda document: json.dumps(document).encode()),
)  # fmt: skip
QUERIES = st.dictionaries(
    st.sampled_from(
        ["cursor", "limit", "recursive", "blobs", "author", "search", "q", "from", "to", "path", "expires"]
    ),
    st.one_of(st.text(max_size=6), st.integers().map(str)),
    max_size=3,
)
RANGES = st.sampled_from(["", "bytes=0-", "bytes=5-1", "bytes=-", "bytes=999999999999999999-", "x"])


@pytest.fixture(scope="module")
def ask(server: RunningHub) -> Iterator[Callable[..., httpx.Response]]:
    headers = {"Authorization": f"Bearer {server.token('ada')}"}
    with httpx.Client(base_url=server.endpoint, headers=headers) as client:
        for kind in ("kernel", "model"):
            client.post("/api/repos/create", json={"name": "any", "organization": "acme", "type": kind})
        yield client.request


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_request_makes_the_server_fail(ask: Callable[..., httpx.Response], data: st.DataObject):
    route = data.draw(st.sampled_from(routes()))
    method = data.draw(st.sampled_from(sorted(route.methods)))

    def fill(match: re.Match[str]) -> str:
        if match[1] == "namespace":
            return data.draw(st.sampled_from(["acme", "ada", "x"]))
        if match[1] == "name":
            return data.draw(st.sampled_from(["any", "none"]))
        choices = (match[2] or "").split("|")
        if len(choices) > 1:
            return data.draw(st.sampled_from(choices))
        return quote(data.draw(SEGMENTS).encode("utf-8", "replace"), safe="")

    path = re.sub(r"\{(\w+)(?::([^{}]+))?\}", fill, route.template)
    answer = ask(
        method,
        path,
        content=None if method in ("GET", "HEAD") else data.draw(BODIES),
        params={key: value.encode("utf-8", "replace") for key, value in data.draw(QUERIES).items()},
        headers={"Range": data.draw(RANGES)},
    )
    assert answer.status_code < 500, (method, path, answer.text)
    assert answer.headers["x-content-type-options"] == "nosniff"
