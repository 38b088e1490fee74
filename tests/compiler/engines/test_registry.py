"""The registry: what comes along, entry points, paths and their modes; what is refused, and in which words."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import sys
import threading

import pytest

from kernels_hub.compiler.engines import registry
from kernels_hub.compiler.engines.engine import Engine, engine_id
from kernels_hub.compiler.errors import EngineError

ONE = """
class Echo:
    def __init__(self, name): self.name = name
    def check(self, graph, device): ...
    def compile(self, graph, device, knobs): ...
    def load(self, payload, device): ...
"""


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    monkeypatch.delenv(registry.PATH_VARIABLE, raising=False)
    registry.set_plugin_paths([])
    yield
    registry.set_plugin_paths([])


@pytest.fixture
def plugin(tmp_path):
    """plugin("a.py", "engines = lambda: [Echo('a')]") -> the path of the file."""

    def plugin(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{ONE}\n{text}\n")
        return path

    return plugin


def names():
    return [one.name for one in registry.engines()]


def reason(path):
    (found,) = [one.reason for one in registry.failures() if one.source == str(path)]
    return found


def test_what_comes_along():
    assert {"library", "reference"} <= set(names())
    for one in registry.engines():
        assert isinstance(one, Engine)
        assert registry.engine(one.name) is one
    rows = {row.name: row for row in registry.registered()}
    assert rows["library"].source == "bundled library"
    assert rows["library"].id == engine_id("library")


def test_an_id_is_the_same_everywhere():
    digest = hashlib.sha256(b"library").digest()
    assert engine_id("library") == int.from_bytes(digest[:8], "little", signed=True) != engine_id("reference")


def test_a_bundled_engine_whose_packages_are_missing(monkeypatch):
    missing = ("ghost", "kernels_hub.compiler.engines.no_such_engine")
    monkeypatch.setattr(registry, "BUNDLED", (*registry.BUNDLED, missing))
    registry.reload()
    assert "library" in names()
    assert "No module named" in reason("bundled ghost")


def test_an_unknown_name_lists_what_there_is_and_what_failed(plugin):
    path = plugin("broken.py", "raise RuntimeError('no licence')")
    registry.set_plugin_paths([path])
    with pytest.raises(
        EngineError, match=r"no engine is called 'quick'; there are .*library(.|\n)*broken.py: .*no licence"
    ):
        registry.engine("quick")


@pytest.mark.parametrize(
    "text",
    [
        "ENGINE = Echo('mine')",
        "engines = [Echo('mine')]",
        "def engines(): return (Echo('mine'),)",
        "def engines(): yield Echo('mine')",
        "def engines(): return Echo('mine')",
    ],
)
def test_ways_to_give_engines(plugin, text):
    registry.set_plugin_paths([plugin("mine.py", text)])
    assert names()[-1] == "mine"
    assert not [one for one in registry.failures() if "mine.py" in one.source]


def test_a_folder_has_modules_and_packages(plugin, tmp_path):
    plugin("all/a.py", "ENGINE = Echo('a')")
    plugin("all/b/__init__.py", "from .part import NAME\nENGINE = Echo(NAME)")
    plugin("all/b/part.py", "NAME = 'b'")
    plugin("all/_private.py", "raise RuntimeError")
    (tmp_path / "all" / "notes.txt").write_text("no module")
    registry.set_plugin_paths([tmp_path / "all"])
    assert names()[-2:] == ["a", "b"]
    registry.set_plugin_paths([tmp_path / "all" / "b"])
    assert names()[-1] == "b"


def test_two_files_of_one_name_do_not_meet(plugin, tmp_path):
    one, other = plugin("x/same.py", "ENGINE = Echo('one')"), plugin("y/same.py", "ENGINE = Echo('other')")
    registry.set_plugin_paths([one, other])
    assert names()[-2:] == ["one", "other"]
    assert "same" not in sys.modules


def test_modes(plugin, monkeypatch):
    inherited, mine = (
        plugin("inherited.py", "ENGINE = Echo('inherited')"),
        plugin("mine.py", "ENGINE = Echo('mine')"),
    )
    monkeypatch.setenv(registry.PATH_VARIABLE, os.pathsep.join([str(inherited), ""]))
    registry.reload()
    assert names()[-1] == "inherited"
    registry.set_plugin_paths([mine])
    assert names()[-2:] == ["inherited", "mine"]
    registry.set_plugin_paths([mine], mode="absolute")
    assert "inherited" not in names() and names()[-1] == "mine" and "library" in names()
    registry.set_plugin_paths([])
    assert names()[-1] == "inherited"


def test_bad_settings_change_nothing(plugin):
    registry.set_plugin_paths([plugin("mine.py", "ENGINE = Echo('mine')")])
    with pytest.raises(ValueError, match="'additive' or 'absolute', not 'both'"):
        registry.set_plugin_paths([], mode="both")
    with pytest.raises(TypeError, match="put it into a list"):
        registry.set_plugin_paths("/some/where")
    assert names()[-1] == "mine"


def test_paths_that_are_not_there(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    registry.set_plugin_paths([tmp_path / "none", empty])
    assert "library" in names()
    assert "there is no file or folder" in reason(tmp_path / "none")
    assert "has no Python modules" in reason(empty)


def distribution(folder, name, value, text):
    """An installed distribution with one module and one entry point."""
    (folder / f"{name}.py").write_text(f"{ONE}\n{text}\n")
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"{name}.py,,\n")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{name} = {name}:{value}\n")


def test_entry_points(monkeypatch, tmp_path):
    distribution(tmp_path, "good_engine", "ENGINE", "ENGINE = Echo('good')")
    distribution(tmp_path, "late_engine", "make", "def make(): return [Echo('late')]")
    distribution(tmp_path, "bad_engine", "ENGINE", "raise ImportError('libnothing.so.4: cannot open')")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.reload()
    assert names()[-2:] == ["good", "late"]
    assert "libnothing.so.4" in reason("entry point bad_engine of bad_engine 1.0")
    assert "good_engine" not in sys.modules  # asked for in a child process alone
    assert registry.engine("good").loaded().name == "good" and "good_engine" in sys.modules
    registry.set_plugin_paths([], mode="absolute")
    assert "good" not in names()


def test_distributions_that_name_no_engines_are_not_parsed(monkeypatch, tmp_path):
    """Their files are searched for the group alone, which takes a fifth of the time."""
    asked = []
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: asked.append(group) or [])
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not path.endswith(".zip")])
    assert not registry.has_plugins() and not asked
    distribution(tmp_path, "some_engine", "ENGINE", "ENGINE = Echo('some')")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.reload()
    assert not registry.has_plugins() and asked == [registry.GROUP]


def test_entry_points_in_an_archive_and_by_finders_of_others(monkeypatch, tmp_path):
    distribution(tmp_path, "packed_engine", "ENGINE", "ENGINE = Echo('packed')")
    archive = shutil.make_archive(str(tmp_path.parent / "packed"), "zip", tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, archive])
    registry.reload()
    assert registry.has_plugins()

    class Finder(importlib.metadata.DistributionFinder):
        def find_spec(self, *_):
            return None

        def find_distributions(self, context=None):
            yield importlib.metadata.Distribution.at(tmp_path / "packed_engine-1.0.dist-info")

    monkeypatch.setattr(sys, "path", sys.path[:-1])
    registry.reload()
    assert not registry.has_plugins()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    registry.reload()
    assert registry.has_plugins()


def test_damaged_metadata_of_a_distribution(monkeypatch, tmp_path):
    def damaged(group):
        raise ValueError("not a valid entry point")

    distribution(tmp_path, "some_engine", "ENGINE", "ENGINE = Echo('some')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(importlib.metadata, "entry_points", damaged)
    registry.reload()
    assert "library" in names()
    assert "not a valid entry point" in reason("entry points kernels_hub.engines")


def test_loaded_once_by_many_threads(plugin, tmp_path):
    path = plugin(
        "slow.py",
        f"import os, time\nwith open({str(tmp_path / 'log')!r}, 'a') as log: log.write(f'{{os.getpid()}} ')\n"
        "time.sleep(0.05)\nENGINE = Echo('slow')",
    )
    registry.set_plugin_paths([path])
    seen = []
    threads = [
        threading.Thread(target=lambda: seen.append(registry.engine("slow").loaded())) for _ in range(8)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(set(map(id, seen))) == 1 and len(seen) == 8
    assert (tmp_path / "log").read_text().split().count(str(os.getpid())) == 1
    registry.reload()
    assert registry.engine("slow").loaded() is not seen[0]
