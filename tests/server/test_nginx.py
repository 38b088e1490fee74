"""Three servers with roots of their own behind nginx, with the configuration that docs/hub.md prints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from huggingface_hub import CommitOperationAdd, HfApi

from kernels_hub.server.limits import Limits
from tests.hub_databases import needs_postgresql
from tests.nginx import LACKING, nginx, printed
from tests.running_hub import RunningHub, start_hub

pytestmark = [needs_postgresql, pytest.mark.skipif(LACKING is not None, reason=str(LACKING))]


@pytest.fixture
def servers(tmp_path: Path, database: str, objects: str) -> Iterator[list[RunningHub]]:
    options = {"database": database, "objects": objects, "trusted_proxies": "127.0.0.1"}
    with ExitStack() as stack:
        yield [stack.enter_context(start_hub(tmp_path / f"root{number}", **options)) for number in range(3)]


def test_three_servers_are_one_hub_behind_nginx(servers: list[RunningHub], tmp_path: Path):
    with nginx(tmp_path / "nginx", [server.endpoint for server in servers]) as endpoint:
        api = HfApi(endpoint, token=servers[0].token("ada"))
        for number in range(12):
            api.create_repo(f"ada/k{number}", repo_type="kernel")
            api.create_commit(
                f"ada/k{number}",
                [CommitOperationAdd("f", b"%d" % number)],
                commit_message="m",
                repo_type="kernel",
            )
        answered = [sum("ada/k" in request.path for request in server.requests()) for server in servers]
        assert sum(count > 0 for count in answered) >= 2, "the requests are shared out by repository"
        servers[answered.index(max(answered))].kill()
        for number in range(12):
            url = f"{endpoint}/kernels/ada/k{number}/resolve/main/f"
            assert httpx.get(url).raise_for_status().text == str(number)
        page = httpx.get(f"{endpoint}/kernels/ada/k1")
        assert page.status_code == 200 and endpoint in page.text, "addresses are those of the proxy"


def test_nginx_ends_connections_to_servers_before_these_do():
    """What is not sent twice is answered with 502 where a server ends the connection just as it comes."""
    (seconds,) = re.findall(r"keepalive 32;\s+keepalive_timeout (\d+)s;", printed())
    assert int(seconds) + 5 < Limits().keep_alive_seconds
