"""nginx before servers of a Hub, with the configuration that docs/hub.md prints."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import httpx

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
LACKING = None if NGINX is not None else "needs nginx, such as Debian's nginx-light"
SERVERS = 3
"""What the configuration names."""
_PAGE = (Path(__file__).parents[1] / "docs" / "hub.md").read_text(encoding="utf-8")
_CONFIGURATION = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    {printed}
}}
"""


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def printed() -> str:
    """The configuration that the page prints."""
    (found,) = re.findall(r"^    map \$uri.*?\n(?=\S)", _PAGE, re.DOTALL | re.MULTILINE)
    return str(found)


@contextmanager
def nginx(folder: Path, endpoints: Sequence[str]) -> Iterator[str]:
    """nginx before servers: its address. folder: a new one, for what it writes."""
    port = _free_port()
    ports = {"8080": str(port)} | {
        f"808{number}": endpoint.rpartition(":")[2] for number, endpoint in enumerate(endpoints, 1)
    }
    text = re.sub(r"127\.0\.0\.1:(808\d)", lambda match: f"127.0.0.1:{ports[match[1]]}", printed())
    folder.mkdir()
    (folder / "nginx.conf").write_text(_CONFIGURATION.format(folder=folder, printed=text))
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
