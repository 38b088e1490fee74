"""Connections that stall, drip or pile up: they end, and everybody else is served meanwhile."""

from __future__ import annotations

import re
import resource
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.running_hub import RunningHub, start_hub

LIMITS = {
    "header_seconds": 0.5, "idle_seconds": 1.0, "min_body_rate": 1000, "keep_alive_seconds": 1,
    "max_address_connections": 40, "max_bad_tokens_per_minute": 5,
}  # fmt: skip
PROXY = "127.0.0.9"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with start_hub(
        tmp_path_factory.mktemp("stall") / "root", limits=LIMITS, trusted_proxies=PROXY
    ) as running:
        yield running


def connect(hub: RunningHub, data: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
    address = urlsplit(hub.endpoint)
    opened = socket.create_connection(
        (address.hostname, address.port), timeout=15, source_address=(source, 0)
    )
    if data:
        opened.sendall(data)
    return opened


def seconds_until_closed(opened: socket.socket) -> float:
    start = time.monotonic()
    try:
        while opened.recv(65536):
            pass
    except ConnectionError:
        pass
    return time.monotonic() - start


HEAD = b"POST /api/validate-yaml HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "sent", [b"", b"GET /hea", HEAD, HEAD + b"Content-Length: 100000\r\n\r\n" + b"x" * 50], ids=["nothing", "a line", "headers", "a body"]
)  # fmt: skip
def test_connections_that_stall_are_closed(hub: RunningHub, sent: bytes):
    with connect(hub, sent) as opened:
        assert seconds_until_closed(opened) < 8


@pytest.mark.parametrize(
    "start", [HEAD + b"X-A: ", HEAD + b"Content-Length: 100000\r\n\r\n"], ids=["headers", "a body"]
)
def test_connections_that_drip_are_closed(hub: RunningHub, start: bytes):
    with connect(hub, start) as opened:
        closed, end = False, time.monotonic() + 9
        while not closed and time.monotonic() < end:
            time.sleep(0.1)
            try:
                opened.sendall(b"x")
            except ConnectionError:
                closed = True
        assert closed


def test_an_answer_that_nobody_reads_ends(hub: RunningHub):
    with socket.socket() as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.settimeout(15)
        address = urlsplit(hub.endpoint)
        opened.connect((address.hostname, address.port))
        asked = b"GET /static/style.css HTTP/1.1\r\nHost: x\r\n\r\n"
        end = time.monotonic() + 12
        try:
            while time.monotonic() < end:
                opened.sendall(asked * 50)
                time.sleep(0.05)
        except (ConnectionError, TimeoutError):
            pass
        else:
            pytest.fail("the server goes on answering")


def test_others_are_served_while_connections_pile_up(hub: RunningHub):
    with ExitStack() as stack:
        for number in range(300):
            stack.enter_context(connect(hub, b"GET /he", f"127.0.{1 + number % 30}.7"))
        for _ in range(200):  # more than one address may have
            stack.enter_context(connect(hub, b"GET /he"))
        times = []
        for _ in range(20):
            start = time.perf_counter()
            assert httpx.get(f"{hub.endpoint}/health", timeout=5).status_code == 200
            times.append(time.perf_counter() - start)
        assert statistics.median(times) < 1
    assert "Traceback" not in hub.output()


def test_an_address_whose_connections_are_all_at_work_is_refused(hub: RunningHub):
    source, head = "127.0.0.77", HEAD + b"Content-Length: 100000\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(connect(hub, head, source))
        time.sleep(0.3)
        with connect(hub, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", source) as one:
            assert b"503" in one.recv(1000)
        assert httpx.get(f"{hub.endpoint}/health").status_code == 200


@pytest.mark.exhaustive
def test_running_out_of_descriptors_is_one_line(tmp_path: Path):
    limits = {**LIMITS, "header_seconds": 1.0, "max_address_connections": 10_000}
    with start_hub(tmp_path / "root", limits=limits) as hub, ExitStack() as stack:
        # Fewer than it was told at its start.
        resource.prlimit(hub.process.pid, resource.RLIMIT_NOFILE, (60, 60))
        for _ in range(150):
            stack.enter_context(connect(hub, b"GET /"))
        time.sleep(0.7)
        assert len(hub.output()) < 20_000
        time.sleep(1.2)
        assert httpx.get(f"{hub.endpoint}/health", timeout=10).status_code == 200


# -- rates


def test_guessing_tokens_is_bounded(hub: RunningHub):
    def guess(source: str, token: str = "hf_guess") -> int:
        with httpx.Client(transport=httpx.HTTPTransport(local_address=source)) as client:
            headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": f"10.0.0.{len(token)}"}
            return client.get(f"{hub.endpoint}/api/whoami-v2", headers=headers).status_code

    answers = [guess("127.0.0.21", "x" * n) for n in range(1, 12)]
    assert answers[:5] == [401] * 5 and set(answers[5:]) == {429}, "and X-Forwarded-For is nobody's word"
    assert guess("127.0.0.22") == 401, "others are not held up"
    assert guess("127.0.0.21", hub.token("ada")) == 200, "nor is who has a token"
    proxied = [guess(PROXY, "x" * n) for n in range(1, 12)]
    assert proxied == [401] * 11, "a configured proxy tells whom it speaks for"


def test_a_snapshot_of_many_files_meets_no_rate(tmp_path: Path):
    with start_hub(tmp_path / "root") as hub, httpx.Client(base_url=hub.endpoint) as client:
        client.headers["Authorization"] = f"Bearer {hub.token('ada')}"
        statuses = {client.get("/api/whoami-v2").status_code for _ in range(700)}
        assert statuses == {200}


def test_metrics_of_one_process(hub: RunningHub):
    httpx.get(f"{hub.endpoint}/health")
    text = httpx.get(f"{hub.endpoint}/metrics").text
    found = re.search(r'kernels_hub_requests_total\{method="GET",route="/health",status="200"\} (\d+)', text)
    assert found and int(found[1]) > 0


# -- the log


def test_the_log_holds_no_tokens_and_no_control_characters(hub: RunningHub):
    token = hub.token("ada")
    spelled = "".join(f"%{ord(c):02x}" for c in token)
    for path in (
        f"/api/{token}",
        f"/api/x/{spelled}",
        f"/x/y/resolve/{token}/f",
        "/api/%1b[31m%0aforged access line",
        "/api/" + "a" * 15_000,
    ):
        httpx.get(hub.endpoint + path)
    with connect(hub, f"GET /{token} \x1b[31m nonsense\r\n\r\n".encode()) as opened:
        seconds_until_closed(opened)
    log = hub.output("aaaaa")
    assert token not in log and token[3:] not in log and spelled not in log
    assert "\x1b" not in log and max(map(len, log.splitlines())) < 3000
    assert not any(line.startswith("forged") for line in log.splitlines())


def test_the_log_is_limited_in_lines(hub: RunningHub):
    before = len(hub.output())

    def nonsense() -> None:
        for _ in range(60):
            with connect(hub, b"\x01nonsense\r\n\r\n", "127.0.0.50") as opened:
                seconds_until_closed(opened)

    threads = [threading.Thread(target=nonsense) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(hub.output()) - before < 30_000
