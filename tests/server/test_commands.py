"""`kernels-hub serve` and `kernels-hub hub …`, as an administrator uses them."""

from __future__ import annotations

import datetime
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from huggingface_hub import CommitOperationAdd, HfApi

from kernels_hub.cli import main
from kernels_hub.server.hub import Hub
from tests.combinations import all_but
from tests.running_hub import RunningHub, start_hub

COMMAND = [sys.executable, "-c", "from kernels_hub.cli import main; main()"]


@pytest.fixture
def hub(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """hub("user", "add", "ada") -> exit code, stdout, stderr of `kernels-hub hub user add ada --root …`."""

    def hub(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as done:
            main(["hub", *arguments, "--root", str(tmp_path / "root")])
        out, err = capsys.readouterr()
        return int(done.value.code or 0), out, err

    return hub


@contextmanager
def serving(root: Path, *options: str) -> Iterator[str]:
    """`kernels-hub serve` as a process; its address."""
    process = subprocess.Popen(
        [*COMMAND, "serve", "--root", str(root), "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        match = re.match(r"kernels-hub serve: (https?://\S+) root ", process.stdout.readline())
        assert match is not None
        yield match[1]
    finally:
        process.terminate()
        assert process.wait(30) in (0, -15)
        process.stdout.close()


@pytest.mark.parametrize("workers", all_but(["1", "2"], "1"))
def test_a_server_that_is_ended_leaves_nothing_temporary(
    workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    root = tmp_path / "root"
    with serving(root, "--workers", workers):
        assert len(list(root.glob("incoming/*/metrics"))) == (workers == "2"), "workers count in a folder"
    assert not list(root.glob("incoming/*"))
    start_hub(root, workers=int(workers)).kill()
    assert len(list(root.glob("incoming/*/metrics"))) == (workers == "2")
    with start_hub(root, workers=int(workers)):
        assert len(list(root.glob("incoming/*/metrics"))) == (workers == "2"), "the next one removes it"
    assert not list(root.glob("incoming/*")) and not list(temporary.iterdir())


def test_accounts(hub: Callable[..., tuple[int, str, str]]):
    assert hub("user", "list")[0] == 1, "there is no root yet"
    assert hub("user", "add", "ada") == (0, "added user ada\n", "")
    assert hub("user", "add", "bob")[0] == 0
    code, _, err = hub("user", "add", "ADA")
    assert code == 1 and "there is an account 'ADA' already" in err
    assert "cannot name an account" in hub("user", "add", "../x")[2]
    assert "cannot name an account" in hub("user", "add", "api")[2]
    assert "there is no user 'eve'" in hub("org", "add", "acme", "--admin", "eve")[2]
    assert hub("org", "add", "acme", "--admin", "ada", "--trusted")[0] == 0
    assert hub("org", "member", "acme", "bob", "--role", "read")[0] == 0
    assert "last admin" in hub("org", "member", "acme", "ada", "--role", "none")[2]
    assert "no role" in hub("org", "member", "acme", "bob", "--role", "king")[2]
    assert "last admin of acme" in hub("user", "remove", "ada")[2]
    (org,) = json.loads(hub("org", "list", "--json")[1])
    assert org["trusted"] is True and org["members"] == {"ada": "admin", "bob": "read"}
    assert "acme" in hub("org", "list")[1] and "bob (read)" in hub("org", "list")[1]
    assert hub("org", "trust", "acme", "--off")[0] == 0
    assert json.loads(hub("org", "list", "--json")[1])[0]["trusted"] is False
    assert hub("user", "remove", "bob")[0] == 0
    assert [row["name"] for row in json.loads(hub("user", "list", "--json")[1])] == ["ada"]
    assert hub("org", "remove", "acme")[0] == 0 and hub("org", "list")[1] == "none yet\n"


def test_tokens(hub: Callable[..., tuple[int, str, str]]):
    hub("user", "add", "ada")
    code, out, err = hub("token", "new", "ada", "--role", "write", "--repo", "acme/k", "--days", "7")
    assert (code, err) == (0, "") and re.fullmatch(r"hf_[A-Za-z0-9]{40}\n", out), "the token alone"
    assert hub("token", "new", "eve", "--role", "read")[0] == 1
    assert "expected read or write" in hub("token", "new", "ada", "--role", "all")[2]
    assert "expected org/name" in hub("token", "new", "ada", "--role", "read", "--repo", "k")[2]
    listed = hub("token", "list")[1]
    assert "acme/k" in listed and "hf_" not in listed
    (token,) = json.loads(hub("token", "list", "ada", "--json")[1])
    assert token["role"] == "write" and 6.9 < (token["expires"] - token["created"]) / 86400 <= 7
    assert hub("token", "remove", token["id"])[0] == 0
    assert "no such token" in hub("token", "remove", token["id"])[2]


def test_administration_while_a_server_runs(hub: Callable[..., tuple[int, str, str]], tmp_path: Path):
    with serving(tmp_path / "root", "--workers", "2") as endpoint:
        hub("user", "add", "ada")
        hub("org", "add", "acme", "--admin", "ada", "--trusted")
        token = hub("token", "new", "ada", "--role", "write", "--repo", "acme/k")[1].strip()
        api = HfApi(endpoint, token=token)
        assert api.get_organization_overview("acme").trustedKernelPublisher is True
        api.create_repo("acme/k", repo_type="kernel")
        add = [CommitOperationAdd("a", b"1")]
        api.create_commit("acme/k", add, commit_message="m", repo_type="kernel")
        assert hub("fsck")[1] == "1 repositories, no problems\n"
        assert json.loads(hub("gc", "--json")[1])["packs_after"] == 1
        assert "owns 1 repositories" in hub("org", "remove", "acme")[2]
        assert hub("backup", str(tmp_path / "copy"))[0] == 0
        assert "exists already" in hub("backup", str(tmp_path / "copy"))[2]
        hub("token", "remove", token)
        assert (
            httpx.get(f"{endpoint}/api/whoami-v2", headers={"Authorization": f"Bearer {token}"}).status_code
            == 401
        )
        assert api.file_exists  # the address still serves what is public
        assert httpx.get(f"{endpoint}/kernels/acme/k/resolve/main/a").text == "1"
    packs = (tmp_path / "copy").glob("repositories/*/git/objects/pack/*.pack")
    for pack in packs:
        pack.chmod(0o644)
        pack.write_bytes(pack.read_bytes()[:-1])
    done = subprocess.run(
        [*COMMAND, "hub", "fsck", "--root", str(tmp_path / "copy")], capture_output=True, text=True
    )
    assert done.returncode == 1 and "kernel acme/k: " in done.stdout


def test_repositories(hub: Callable[..., tuple[int, str, str]], tmp_path: Path):
    hub("user", "add", "ada")
    hub("user", "add", "bob")
    assert hub("repo", "list")[1] == "none yet\n"
    with Hub(tmp_path / "root") as opened:
        opened.changes.create("kernel", "ada", "k", private=False, author="ada")
        opened.changes.create("model", "ada", "m", private=True, author="ada")
    rows = {row["name"]: row for row in json.loads(hub("repo", "list", "--json")[1])}
    assert rows["ada/m"]["private"] and rows["ada/k"]["bytes"] > 100
    assert hub("repo", "set", "ada/k", "--private", "--gated", "manual")[1] == (
        "ada/k is private and gated (manual)\n"
    )
    assert "gated (manual)" in hub("repo", "list")[1]
    assert hub("repo", "grant", "ada/k", "bob")[0] == 0
    assert "no user 'eve'" in hub("repo", "grant", "ada/k", "eve")[2]
    with Hub(tmp_path / "root") as opened:
        found = opened.repositories.find("kernel", "ada", "k")
        assert found is not None and opened.repositories.grant_of(found, "bob") == "accepted"
    assert "public and open" in hub("repo", "set", "ada/k", "--public", "--gated", "no")[1]
    assert "auto, manual or no" in hub("repo", "set", "ada/k", "--gated", "perhaps")[2]
    assert "no kernel repository 'ada/m'" in hub("repo", "remove", "ada/m")[2]
    assert hub("repo", "remove", "ada/m", "--type", "model")[0] == 0
    assert hub("repo", "remove", "ada/k")[0] == 0
    assert list((tmp_path / "root" / "repositories").iterdir()) == []


def test_tls(tmp_path: Path):
    certificate, key = own_certificate(tmp_path)
    with serving(tmp_path / "root", "--tls-cert", str(certificate), "--tls-key", str(key)) as endpoint:
        assert endpoint.startswith("https://")
        context = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(verify=context) as client:
            assert client.get(f"{endpoint}/health").text == "ok\n"


def own_certificate(folder: Path) -> tuple[Path, Path]:
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "hub")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .sign(private, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return folder / "cert.pem", folder / "key.pem"


@pytest.mark.parametrize(
    "options, words",
    [
        (["--tls-cert", "x.pem"], "needs both"),
        (["--tls-cert", "x.pem", "--tls-key", "y.pem"], "x.pem is not a file"),
        (["--host", "256.1.1.1"], "cannot listen on 256.1.1.1"),
    ],
)
def test_serve_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str):
    with pytest.raises(SystemExit) as done:
        main(["serve", "--root", str(tmp_path / "root"), *options])
    assert done.value.code == 1 and words in capsys.readouterr().err


def test_a_port_that_is_taken(server: RunningHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    port = server.endpoint.rsplit(":", 1)[1]
    with pytest.raises(SystemExit):
        main(["serve", "--root", str(tmp_path / "root"), "--port", port])
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_metrics_add_up_over_workers(server: RunningHub):
    def count() -> float:
        text = httpx.get(f"{server.endpoint}/metrics").text
        line = 'kernels_hub_requests_total{method="GET",route="/api/agent-harnesses",status="200"} '
        return float(text.split(line)[1].split("\n")[0]) if line in text else 0.0

    before = count()
    for _ in range(20):  # Each on a connection of its own, so that both workers get some.
        assert httpx.get(f"{server.endpoint}/api/agent-harnesses").status_code == 200
    assert count() - before == 20
    assert "kernels_hub_request_seconds_bucket" in httpx.get(f"{server.endpoint}/metrics").text


def answers(endpoint: str) -> bool:
    try:
        return httpx.get(f"{endpoint}/health").status_code == 200
    except httpx.TransportError:
        return False


def test_workers_end_with_their_supervisor(tmp_path: Path):
    hub = start_hub(tmp_path / "hub", workers=2)
    try:
        os.kill(hub.process.pid, signal.SIGKILL)
        hub.process.wait()
        deadline = time.monotonic() + 20
        while answers(hub.endpoint) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not answers(hub.endpoint)
    finally:
        hub.kill()


def test_health(server: RunningHub):
    assert httpx.get(f"{server.endpoint}/health").status_code == 200
    assert httpx.head(f"{server.endpoint}/health").status_code == 200
