"""Three servers with roots of their own behind nginx, with the configuration that docs/hub.md prints."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import httpx
import pytest
from huggingface_hub import CommitOperationAdd, HfApi

from tests.hub_databases import needs_postgresql
from tests.running_hub import RunningHub, start_hub

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
pytestmark = [
    needs_postgresql,
    pytest.mark.skipif(NGINX is None, reason="needs nginx, such as Debian's nginx-light"),
]
PAGE = (Path(__file__).parents[2] / "docs" / "hub.md").read_text(encoding="utf-8")
CONFIGURATION = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    {printed}
}}
"""


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def printed() -> str:
    """The configuration that the page prints."""
    (found,) = re.findall(r"^    map \$uri.*?\n(?=\S)", PAGE, re.DOTALL | re.MULTILINE)
    return str(found)


@contextmanager
def nginx(folder: Path, endpoints: list[str]) -> Iterator[str]:
    """nginx before servers: its address."""
    port, text = free_port(), printed()
    ports = {"8080": str(port)} | {
        f"808{number}": endpoint.rpartition(":")[2] for number, endpoint in enumerate(endpoints, 1)
    }
    text = re.sub(r"127\.0\.0\.1:(808\d)", lambda match: f"127.0.0.1:{ports[match[1]]}", text)
    folder.mkdir()
    (folder / "nginx.conf").write_text(CONFIGURATION.format(folder=folder, printed=text))
    command = [str(NGINX), "-p", str(folder), "-c", str(folder / "nginx.conf")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < end:
            try:
                httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.05)
        else:
            raise AssertionError((folder / "errors").read_text())
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


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
