"""Fetching from a real Hub: versions, variants, the cache, offline, several threads and processes, trouble."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.utils import http_backoff
from torch import nn

from kernels_hub import (
    Device,
    FuncRepository,
    HubError,
    IntegrityError,
    LayerRepository,
    LocalFuncRepository,
    LockedFuncRepository,
    Mode,
    NoVariantError,
    OfflineError,
    RepoInfo,
    RepositoryNotFoundError,
    TrustError,
    VersionError,
    explain,
    get_kernel,
    get_kernel_variants,
    get_loaded_kernels,
    has_kernel,
    install_kernel,
    kernelize,
    report,
    use_kernel_forward_from_hub,
    use_kernel_mapping,
)
from kernels_hub.hub import client
from kernels_hub.hub.bundle import Item, read_bundle, write_bundle
from kernels_hub.hub.cache import KnownRefs, RepositoryCache
from kernels_hub.hub.connection import Connection
from kernels_hub.hub.locate import Request
from kernels_hub.hub.tree import Tree
from kernels_hub.repository.metadata import KernelDependency
from kernels_hub.repository.versions import Refs, VersionRequest
from tests.hub.place import Place
from tests.hub.small_kernels import put, write_variant

ROOT = Path(__file__).resolve().parents[2]


# -- versions ---------------------------------------------------------------------------------------


def test_versions_over_tags_and_branches(place: Place) -> None:
    first = place.release("1.0.0", "1.0.0")
    place.release("1.2.0", "1.2.0")
    place.release("2.0.0rc1", "2.0.0rc1")
    place.put("main")
    assert place.get(version=">=1").VALUE == "1.2.0"
    assert place.get(version=">=1,<1.2").VALUE == "1.0.0"
    assert place.get(version="==1.0.0").VALUE == "1.0.0"
    assert place.get(version=">=2.0.0rc1").VALUE == "2.0.0rc1"
    assert place.get(version=1).VALUE == "1.2.0"
    assert place.get(revision="v1.0.0").VALUE == "1.0.0"
    assert place.get(revision=first).VALUE == "1.0.0"
    assert place.get().VALUE == "main"


def test_a_version_that_does_not_exist_comes_with_the_nearest(place: Place) -> None:
    place.release("1.0.0", 1)
    place.release("1.4.0", 2)
    with pytest.raises(VersionError, match=r"no release >=1\.5.*1\.4\.0, 1\.0\.0"):
        place.get(version=">=1.5")
    with pytest.raises(VersionError, match=r"no branch 'v7'.*v1"):
        place.get(version=7)
    with pytest.raises(VersionError, match=r"no branch or tag 'v1\.4\.1'.*v1\.4\.0"):
        place.get(revision="v1.4.1")
    assert list(place.cache.rglob("layers.py")) == []


def test_installing_fetches_and_imports_nothing(place: Place) -> None:
    commit = place.release("1.0.0", "installed")
    loaded = len(get_loaded_kernels())
    with pytest.raises(OfflineError):
        install_kernel(place.repo(), version=1, local_files_only=True)
    client.forget()
    folder = install_kernel(place.repo(), version=1, trust_remote_code=True)
    assert (folder / "metadata.json").is_file()
    assert len(get_loaded_kernels()) == loaded
    assert install_kernel(place.repo(), version=1, local_files_only=True, trust_remote_code=True) == folder
    place.get(version=1)
    kernel = get_loaded_kernels()[-1]
    assert kernel.repo_info == RepoInfo(place.repo(), commit)


def test_functions_by_the_peers_names(place: Place, tmp_path: Path) -> None:
    place.release("1.0.0", "functions")
    reference = FuncRepository(place.repo(), func_name="Scale", version=1, trust_remote_code=True)
    assert reference.func_name == reference.layer_name == "Scale"
    assert reference.load() is place.get(version=1).layers.Scale
    assert reference == FuncRepository(place.repo(), func_name="Scale", version=1, trust_remote_code=True)
    assert reference != FuncRepository(place.repo(), func_name="Other", version=1, trust_remote_code=True)
    assert len({reference, LayerRepository(place.repo(), layer_name="Scale", version=1)}) == 2
    with pytest.raises(VersionError, match="both|not both|one of"):
        FuncRepository(place.repo(), func_name="Scale", version=1, revision="main")
    local = LocalFuncRepository(tmp_path, func_name="Scale")
    assert local.func_name == "Scale"
    assert LockedFuncRepository(place.repo(), func_name="Scale").func_name == "Scale"


def test_a_yanked_release_needs_its_exact_name(place: Place) -> None:
    place.release("1.0.0", "old")
    place.release("1.1.0", "bad", extra={"yanked.json": json.dumps({"1.1.0": "wrong numbers"})})
    assert place.get(version=">=1").VALUE == "old"
    assert place.get(version="==1.1.0").VALUE == "bad"
    place.offline()
    assert place.get(version="~=1.0").VALUE == "old"


def test_a_repository_of_type_model(place: Place) -> None:
    place.release("1.0.0", "model", repo_type="model")
    assert place.get(version=1).VALUE == "model"
    assert place.get(version=1, repo_type="model").VALUE == "model"
    with pytest.raises(RepositoryNotFoundError):
        place.get(version=1, repo_type="kernel")


def test_a_repository_that_is_not_there(place: Place) -> None:
    with pytest.raises(RepositoryNotFoundError, match="neither as a kernel nor as a model"):
        place.get("nothing", version=1)


# -- variants ---------------------------------------------------------------------------------------


def test_only_the_chosen_variant_is_downloaded(place: Place) -> None:
    write_variant(place.scratch / "build" / "torch-cpu", "cpu")
    write_variant(place.scratch / "build" / "torch-cuda", "cuda")
    put(place.api, place.repo(), place.scratch / "build", tag="v1.0.0", branch="v1")
    seen = len(place.requests())
    assert place.get(version=1).VALUE == "cpu"
    asked = place.requests()[seen:]
    assert [line for line in asked if "torch-cuda" in line] == []
    assert len([line for line in asked if "/tree/" in line]) == 1
    assert (
        len(
            [line for line in asked if line.startswith("GET") and "/resolve/" in line and "torch-cpu" in line]
        )
        == 3
    )
    assert get_kernel_variants(place.repo(), version=1)[0].variant.backend == "cpu"
    assert has_kernel(place.repo(), version=1)
    assert has_kernel(place.repo(), version=1, backend="cuda")
    assert not has_kernel(place.repo(), version=1, backend="rocm")
    assert list(place.cache.rglob("*torch-cuda*")) == []


def test_no_variant_that_fits(place: Place) -> None:
    place.release("1.0.0", 1, variant="torch-rocm")
    with pytest.raises(NoVariantError, match=r"(?s)torch-rocm.*rocm"):
        place.get(version=1)
    (place.scratch / "none").mkdir()
    put(place.api, place.repo("empty"), place.scratch / "none", branch="v1", extra={"README.md": "nothing"})
    with pytest.raises(NoVariantError, match="nothing in build/"):
        place.get("empty", version=1)
    with pytest.raises(NoVariantError, match=r"no variants on main: .*give a version"):
        place.get("empty")
    place.api.create_tag(place.repo("empty"), tag="v1.4.0", repo_type="kernel")
    client.forget()
    with pytest.raises(NoVariantError, match=r"its releases are 1\.4\.0: say version='~=1\.4'"):
        place.get("empty")


# -- asked once -------------------------------------------------------------------------------------


def test_threads_share_one_resolution(place: Place) -> None:
    place.release("1.0.0", 1)
    seen = len(place.requests())
    with ThreadPoolExecutor(8) as pool:
        modules = set(pool.map(lambda _: place.get(version=">=1"), range(16)))
    assert len(modules) == 1
    asked = place.requests()[seen:]
    assert len([line for line in asked if "/refs" in line]) == 1
    assert len([line for line in asked if "/tree/" in line]) == 1
    before = len(place.hub.requests())
    reference = LayerRepository(place.repo(), layer_name="Scale", version=">=1", trust_remote_code=True)
    reference.load()
    for _ in range(100):
        reference.load()
    assert len(place.hub.requests()) == before


def test_processes_share_one_download(place: Place) -> None:
    place.release("1.0.0", 1, files={f"data_{n}.py": f"N = {n}" for n in range(5)})
    seen = len(place.requests())
    program = (
        "from kernels_hub.repository.versions import VersionRequest\n"
        "from kernels_hub.hub.client import fetch\n"
        "from kernels_hub.hub.locate import Request\n"
        f"fetch(Request({place.repo()!r}, VersionRequest('>=1'), 'cpu', trust_remote_code=True))\n"
        "print('ok')"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=place.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(3)
    ]
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert out == b"ok\n", err.decode()
    downloads = [
        line
        for line in place.requests()[seen:]
        if line.startswith("GET") and "/resolve/" in line and "build/" in line
    ]
    assert len(downloads) == len(set(downloads)) == 8


def test_what_is_pinned_and_here_is_not_asked_for(place: Place) -> None:
    commit = place.release("1.0.0", "one")
    place.get(version="==1.0.0")
    client.forget()
    seen = len(place.hub.requests())
    assert place.get(version="==1.0.0").VALUE == "one"
    assert place.get(revision=commit).VALUE == "one"
    assert len(place.hub.requests()) == seen


# -- offline ----------------------------------------------------------------------------------------


def test_offline_by_every_name_after_one_load(place: Place) -> None:
    commit = place.release("1.2.0", "cached")
    place.get(version=">=1,<2")
    seen = len(place.hub.requests())
    place.offline()
    for wanted in (
        {"version": ">=1"},
        {"version": "==1.2.0"},
        {"version": 1},
        {"revision": "v1.2.0"},
        {"revision": commit},
        {"revision": "v1"},
        {},
    ):
        assert place.get(**wanted).VALUE == "cached", wanted
    assert len(place.hub.requests()) == seen
    with pytest.raises(OfflineError, match=r"not available offline.*HF_HUB_OFFLINE"):
        place.get(version=2)
    with pytest.raises(OfflineError):
        place.get("other", version=1)


def test_offline_the_best_release_that_is_here(place: Place) -> None:
    place.release("1.0.0", "old")
    place.get(version=">=1")
    place.release("1.1.0", "new")
    client.forget()
    assert has_kernel(place.repo(), version=">=1.1")  # now the newer one is known, but not here
    place.offline()
    assert place.get(version=">=1").VALUE == "old"
    with pytest.raises(OfflineError):
        place.get(version=">=1.1")


def test_offline_from_another_clients_cache(place: Place) -> None:
    place.release("1.0.0", "theirs")
    place.api.snapshot_download(place.repo(), repo_type="kernel", revision="v1", cache_dir=place.cache)
    place.offline()
    assert place.get(version=1).VALUE == "theirs"


def test_the_hub_goes_away(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.release("1.0.0", "cached")
    place.get(version=">=1")
    client.forget()
    place.at("http://127.0.0.1:9")
    assert place.get(version=">=1").VALUE == "cached"
    assert "cannot be reached" in caplog.text and "from the cache" in caplog.text
    with pytest.raises(HubError, match=r"127\.0\.0\.1:9.*cannot be reached"):
        place.get("other", version=1)


def test_the_hub_goes_away_after_a_release_that_is_not_here(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.release("1.0.0", "old")
    place.get(version=">=1")
    place.release("1.1.0", "new")
    client.forget()
    assert has_kernel(place.repo(), version=">=1.1")
    place.at("http://127.0.0.1:9")
    waits = http_backoff.__kwdefaults__ | {"base_wait_time": 0.01}  # it is asked again for 23 s by default
    place.monkeypatch.setattr(http_backoff, "__kwdefaults__", waits)
    assert place.get(version=">=1").VALUE == "old"
    assert "using v1.0.0" in caplog.text
    with pytest.raises(HubError, match="cannot be reached"):
        place.get(version=">=1.1")


# -- dependencies -----------------------------------------------------------------------------------


def test_a_kernel_that_depends_on_another(place: Place) -> None:
    depends = (KernelDependency(place.repo("base"), version=1),)
    init = f"from kernels_hub import get_kernel_dep\nBASE = get_kernel_dep({place.repo('base')!r})\n"
    put_as = {"init": init, "depends": depends}
    build = place.scratch / "user"
    write_variant(build / "torch-cpu", "user", **put_as)
    put(place.api, place.repo("user"), build, tag="v1.0.0", branch="v1")
    base = write_variant(place.scratch / "base" / "torch-cpu", "base")
    put(place.api, place.repo("base"), base.parent, tag="v1.0.0", branch="v1")
    module = place.get("user", version=1)
    assert (module.VALUE, module.BASE.VALUE) == ("user", "base")
    assert module.BASE is place.get("base", version=1)


def test_a_ring_of_dependencies(place: Place) -> None:
    for one, other in (("a", "b"), ("b", "a")):
        build = place.scratch / one
        write_variant(build / "torch-cpu", one, depends=(KernelDependency(place.repo(other), version=1),))
        put(place.api, place.repo(one), build, tag="v1.0.0", branch="v1")
    with pytest.raises(ValueError, match=r"ring: .*a@v1 -> .*b@v1 -> .*a@v1"):
        place.get("a", version=1)


# -- trust and integrity ----------------------------------------------------------------------------


def test_nothing_is_fetched_of_what_is_not_trusted(place: Place) -> None:
    place.release("1.0.0", 1)
    with pytest.raises(TrustError, match=r"not trusted"):
        get_kernel(place.repo(), version=1)
    assert list(place.cache.rglob("*.py")) == []
    assert get_kernel(place.repo(), version=1, trust_remote_code=[place.repo()]).VALUE == 1


def test_the_hubs_publisher_flag(place: Place) -> None:
    trusted = f"{place.organisation}trusted"
    place.hub.organisation(trusted, "maker", trusted=True)
    build = write_variant(place.scratch / "t" / "torch-cpu", "trusted").parent
    put(place.api, f"{trusted}/small", build, tag="v1.0.0", branch="v1")
    assert get_kernel(f"{trusted}/small", version=1).VALUE == "trusted"
    place.offline()
    assert get_kernel(f"{trusted}/small", version=1).VALUE == "trusted"


def test_the_publisher_flag_does_not_cover_what_a_bundle_brings(place: Place) -> None:
    """A release of a vouched publisher's name, made by somebody else and unpacked here, is not the publisher's."""
    trusted = f"{place.organisation}trusted"
    place.hub.organisation(trusted, "maker", trusted=True)
    build = write_variant(place.scratch / "t" / "torch-cpu", "trusted").parent
    put(place.api, f"{trusted}/small", build, tag="v1.0.0", branch="v1")
    assert get_kernel(f"{trusted}/small", version="==1.0.0").VALUE == "trusted"

    forged, commit = RepositoryCache(place.scratch / "from", f"{trusted}/small", "kernel"), "f" * 40
    write_variant(forged.snapshot(commit) / "build" / "torch-cpu", "forged")
    tree = Tree.of_snapshot(commit, forged.snapshot(commit))
    known = KnownRefs(Refs({}, {"v1.1.0": commit}))
    write_bundle([Item(forged, tree, known)], place.scratch / "forged.bundle")
    read_bundle(place.scratch / "forged.bundle", place.cache, trust_remote_code=True)
    client.forget()
    for offline in (False, True):
        place.offline(offline)
        with pytest.raises((OfflineError, TrustError)):
            get_kernel(f"{trusted}/small", version="==1.1.0")
        assert get_kernel(f"{trusted}/small", version="==1.0.0").VALUE == "trusted"


@pytest.mark.parametrize("inside", ["__init__.py", "layers.py", "metadata.json"])
def test_a_damaged_cache_is_noticed_before_anything_runs(place: Place, inside: str) -> None:
    place.release("1.0.0", 1, init="import sys\nsys.was_run = True\n")
    commit = client.fetch(
        Request(place.repo(), VersionRequest(1), "cpu", trust_remote_code=True)
    ).pinned.commit
    path = (
        place.cache
        / f"kernels--{place.organisation}--small"
        / "snapshots"
        / commit
        / "build"
        / "torch-cpu"
        / inside
    )
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.resolve().write_bytes(content)
    client.forget()
    place.monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(IntegrityError, match=r"nothing of (it|its kernel) was imported"):
        place.get(version=1)
    assert not hasattr(sys, "was_run")
    # Where the Hub may be asked, what is damaged is fetched anew, and nothing else.
    place.monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    client.forget()
    seen = len(place.requests("/resolve/"))
    assert place.get(version=1).VALUE == 1 and path.read_bytes() != bytes(content)
    sys.__dict__.pop("was_run", None)
    asked = {line.partition("/resolve/")[2] for line in place.requests("/resolve/")[seen:]}
    assert asked == {f"{commit}/build/torch-cpu/{inside}"}


def test_what_arrives_damaged_twice_leaves_nothing_in_the_cache(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.release("1.0.0", 1)
    download, arrived = Connection.download, []

    def damaged(
        hub: Connection,
        repo_id: str,
        repo_type: str,
        commit: str,
        files: list,
        root: Path,
        force: bool = False,
    ):
        download(hub, repo_id, repo_type, commit, files, root, force)
        for path in (root / f"kernels--{repo_id.replace('/', '--')}" / "snapshots").rglob("__init__.py"):
            arrived.append(path)
            path.resolve().write_bytes(b"?" * path.stat().st_size)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "download", damaged)
        with pytest.raises(IntegrityError, match="nothing of its kernel was imported"):
            place.get(version=1)
    assert len(arrived) >= 2 and not any(path.exists() for path in arrived)
    client.forget()
    assert place.get(version=1).VALUE == 1


def test_a_file_that_changes_after_it_was_verified(place: Place) -> None:
    place.release("1.0.0", 1, files={"late.py": "LATE = 1\n"})
    module = place.get(version=1)
    late = Path(module.__path__[0]) / "late.py"
    late.resolve().write_text("LATE = 2\n")
    with pytest.raises(IntegrityError, match="changed after it was verified"):
        __import__(f"{module.__name__}.late")


# -- kernelize --------------------------------------------------------------------------------------


def test_kernelize_with_a_layer_from_the_hub(place: Place) -> None:
    @use_kernel_forward_from_hub("Scale")
    class Scale(nn.Module):
        def forward(self, x):
            return x * 1.0

    place.release("1.3.0", 3)
    seen = len(place.requests())
    reference = LayerRepository(place.repo(), layer_name="Scale", version="~=1.2", trust_remote_code=True)
    with use_kernel_mapping({"Scale": {"cpu": reference, "cuda": reference}}, inherit_mapping=False):
        model = nn.Sequential(Scale())
        (dry,) = [
            row for row in explain(model, mode=Mode.INFERENCE, device=Device("cuda")).rows if row.layer_name
        ]
        assert not dry.swapped and "torch-cpu" in dry.reason
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
    assert torch.equal(model(torch.ones(2)), torch.full((2,), 3.0))
    row = report(model).swapped[0]
    assert (row.repository, row.revision, row.variant) == (place.repo(), "1.3.0", "torch-cpu")
    assert len([line for line in place.requests()[seen:] if "/refs" in line]) == 1


# -- a Hub in trouble -------------------------------------------------------------------------------


CUT = -1
"""Instead of a status: begin to answer, and go away in the middle."""


class Proxy:
    """Answers the first requests itself, then passes them on."""

    def __init__(self, target: str, answer: Callable[[int, str], tuple[int, dict[str, str]] | None]) -> None:
        import http.server
        import urllib.error
        import urllib.request

        count = iter(range(10**9))

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                trouble = answer(next(count), self.path)
                if trouble is not None:
                    status, headers = trouble
                    if status == CUT:
                        self.send_response(200)
                        for name, value in headers.items():
                            self.send_header(name, value)
                        self.send_header("Content-Length", "100000")
                        self.end_headers()
                        if self.command != "HEAD":
                            self.wfile.write(b"half of it")
                            self.wfile.flush()
                        self.close_connection = True
                        return
                    self.send_response(status)
                    for name, value in {**headers, "Content-Length": "0"}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    return
                request = urllib.request.Request(target + self.path, method=self.command)
                for name in ("Range", "Authorization", "User-Agent"):
                    if name in self.headers:
                        request.add_header(name, self.headers[name])
                try:
                    with urllib.request.urlopen(request) as response:
                        self._pass_on(response.status, response.headers, response.read())
                except urllib.error.HTTPError as error:
                    with error:
                        self._pass_on(error.code, error.headers, error.read())

            do_HEAD = do_GET

            def _pass_on(self, status: int, headers: Any, body: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in ("connection", "transfer-encoding", "server", "date"):
                        self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.mark.parametrize(("status", "headers"), [(429, {"Retry-After": "0"}), (503, {})])
def test_a_busy_hub_is_asked_again(place: Place, status: int, headers: dict[str, str]) -> None:
    place.release("1.0.0", "patience")
    proxy = Proxy(place.hub.endpoint, lambda number, path: (status, headers) if number < 2 else None)
    try:
        place.at(proxy.endpoint)
        assert place.get(version=1).VALUE == "patience"
    finally:
        proxy.close()


def test_network_trouble_is_no_lack_of_trust(place: Place) -> None:
    place.release("1.0.0", 1)
    proxy = Proxy(place.hub.endpoint, lambda number, path: (500, {}) if "/overview" in path else None)
    try:
        place.at(proxy.endpoint)
        place.monkeypatch.setattr("kernels_hub.hub.connection._FIRST_WAIT", 0.01)
        with pytest.raises(HubError, match="trusted publisher") as caught:
            get_kernel(place.repo(), version=1)
        assert not isinstance(caught.value, TrustError)
    finally:
        proxy.close()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_hub_that_dies_in_the_middle_of_a_download(place: Place) -> None:
    commit = place.release("1.0.0", "whole", files={"large.py": "# " + "x" * 5000 + "\n"})
    headers = {"ETag": '"' + "a" * 40 + '"', "X-Repo-Commit": commit}
    dying = {"now": True}

    def answer(number: int, path: str) -> tuple[int, dict[str, str]] | None:
        return (CUT, headers) if dying["now"] and path.endswith("large.py") else None

    proxy = Proxy(place.hub.endpoint, answer)
    try:
        place.at(proxy.endpoint)
        with pytest.raises((HubError, IntegrityError)):
            place.get(version=1)
        snapshots = place.cache / f"kernels--{place.organisation}--small" / "snapshots"
        assert list(snapshots.rglob("large.py")) == []
        dying["now"] = False
        assert place.get(version=1).VALUE == "whole"
    finally:
        proxy.close()
