"""Downloads counted: what counts, who sees it, and that none is lost but by a kill."""

from __future__ import annotations

import time
from pathlib import Path
from unittest import mock

import httpx
import pytest
from huggingface_hub import HfApi, snapshot_download

from kernels_hub.server.database import DatabaseFullError
from kernels_hub.server.download_counts import DownloadCounts
from kernels_hub.server.hub import Hub
from tests.running_hub import start_hub
from tests.server.test_web import Author

FILES = {
    "README.md": "# Norms\n",
    "config.json": "{}",
    "build/torch-cpu/__init__.py": "from . import layers\n",
    "build/torch-cpu/layers.py": "x = 1\n",
    "build/torch-cpu/sub/__init__.py": "",
    "build/old/norms/__init__.py": "",
}


def test_what_counts_and_where_it_is_shown(tmp_path: Path):
    with start_hub(tmp_path / "root", workers=2) as hub:
        author = Author(hub)
        for name in ("norms", "other"):
            author.repository("kernel", name)
        author.commit("kernel", "norms", FILES)
        base = f"{hub.endpoint}/kernels/ada/norms/resolve/main"
        with httpx.Client() as client:
            etag = client.head(f"{base}/build/torch-cpu/__init__.py").headers["etag"]
            for path, headers, status in (
                ("build/torch-cpu/__init__.py", {}, 200),  # counts
                ("build/torch-cpu/__init__.py", {"Range": "bytes=0-3"}, 206),  # counts: its first bytes
                ("build/torch-cpu/__init__.py", {"Range": "bytes=4-"}, 206),
                ("build/torch-cpu/__init__.py", {"If-None-Match": etag}, 304),
                ("build/torch-cpu/layers.py", {}, 200),
                ("build/torch-cpu/sub/__init__.py", {}, 200),
                ("build/old/norms/__init__.py", {}, 200),  # counts: the entry point of an older layout
                ("README.md", {}, 200),
                ("build/torch-cpu/none.py", {}, 404),
                ("config.json", {}, 200),  # counts
            ):
                assert client.get(f"{base}/{path}", headers=headers).status_code == status
        snapshot_download(
            "ada/norms", repo_type="kernel", endpoint=hub.endpoint, cache_dir=tmp_path / "cache",
            allow_patterns=["build/torch-cpu/*"],
        )  # fmt: skip
        api, end = HfApi(hub.endpoint), time.monotonic() + 60
        while (found := api.kernel_info("ada/norms").downloads) < 5 and time.monotonic() < end:
            time.sleep(0.1)
        assert found == 5
        assert "5 downloads" in httpx.get(hub.endpoint).text
        card = httpx.get(f"{hub.endpoint}/kernels/ada/norms").text
        assert "<dd>5, 5 in 30 days</dd>" in card and "· 3 downloads" in card and "5 downloads" not in card
        listed = httpx.get(f"{hub.endpoint}/api/kernels?sort=downloads").json()
        assert [(item["id"], item["downloads"]) for item in listed] == [("ada/norms", 5), ("ada/other", 0)]
        newest = httpx.get(f"{hub.endpoint}/api/kernels").json()
        assert [item["id"] for item in newest] == ["ada/other", "ada/norms"]
        assert httpx.get(f"{base}/config.json").status_code == 200
        hub.stop()
        with hub.administer() as opened:
            (repository,) = [item for item in opened.repositories.all() if item.name == "norms"]
            assert opened.downloads.of(repository.id).total == 6, "a server that ends writes what waits"


@pytest.fixture
def hub(tmp_path: Path):
    with Hub(tmp_path / "root", create=True) as hub:
        hub.accounts.add_user("ada")
        yield hub


@pytest.mark.each_database
def test_downloads_of_a_month_and_before(hub: Hub):
    repository = hub.changes.create("kernel", "ada", "norms", private=False, author="ada")
    now = time.time()
    for days in (0, 29, 31, 400):
        with mock.patch("time.time", return_value=now - days * 24 * 3600):
            hub.downloads.add(repository.id, "build/a/__init__.py", {})
    hub.downloads.flush()
    found = hub.downloads.of(repository.id)
    assert (found.total, found.recent, found.by_variant) == (4, 2, {"a": 4})


@pytest.mark.each_database
def test_what_cannot_be_written_is_written_later_and_a_deleted_repository_is_in_nobodys_way(hub: Hub):
    kept, gone = (
        hub.changes.create("kernel", "ada", name, private=False, author="ada") for name in ("kept", "gone")
    )
    counts = DownloadCounts(hub.database)
    for repository in (kept, gone, kept):
        counts.add(repository.id, "config.json", {})
    hub.store.delete(gone)
    with (
        mock.patch.object(hub.database, "change", side_effect=DatabaseFullError("database or disk is full")),
        pytest.raises(DatabaseFullError),
    ):
        counts.flush()
    assert counts.of(kept.id).total == 0
    counts.add(kept.id, "config.json", {})
    counts.flush()
    counts.flush()
    assert counts.of(kept.id).total == 3 and counts.of(gone.id).total == 0
    assert not hub.database.check()
