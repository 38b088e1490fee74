"""The arrows between modules that docs and design forbid, the sizes of files, and their names.

Every rule is a row. Each is also tested to find a violation that was planted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.house.import_graph import Module, cycles, inside, read_modules, source_files

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 600
NAMELESS = re.compile(r"(utils?|helpers?|common|misc)\.\w+")
NETWORK = (
    "aiohttp", "ftplib", "http", "httpx", "huggingface_hub", "requests", "socket", "socketserver", "ssl",
    "starlette", "urllib.request", "urllib3", "uvicorn",
)  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """Modules inside `who`, except those inside `exempt`, must not import anything inside `what`."""

    name: str
    who: tuple[str, ...]
    what: tuple[str, ...]
    exempt: tuple[str, ...] = ()

    def violations(self, module: Module) -> list[str]:
        if not any(inside(module.name, who) for who in self.who):
            return []
        if any(inside(module.name, exempt) for exempt in self.exempt):
            return []
        return [
            f"{module.path}:{item.line}: {module.name} imports {item.target} ({self.name})"
            for item in module.imports
            if any(inside(item.target, what) for what in self.what)
        ]


SHIPPED = ("kernels_hub", "bundled")
EVERYWHERE = (*SHIPPED, "tests", "benchmarks", "examples", "tools")

RULES = (
    Rule(
        "layers, mappings and compiler are imported from kernels_hub",
        EVERYWHERE,
        ("layers", "mappings", "compiler"),
    ),
    Rule(
        "only the command line uses the compiler",
        ("kernels_hub",),
        ("kernels_hub.compiler",),
        exempt=("kernels_hub.cli", "kernels_hub.compiler"),
    ),
    Rule(
        "the compiler's front half knows no framework",
        (
            "kernels_hub.compiler.ir",
            "kernels_hub.compiler.rewrite",
            "kernels_hub.compiler.autodiff",
            "kernels_hub.compiler.schedule",
        ),
        ("torch", "triton"),
    ),
    Rule(
        "only hub/ and server/ touch the network",
        SHIPPED,
        NETWORK,
        exempt=("kernels_hub.hub", "kernels_hub.server"),
    ),
    Rule(
        "a layer repository stands alone: other clients load it too",
        ("bundled",),
        ("kernels_hub",),
    ),
    # One way: cli -> layer -> repository -> errors. Any of them may ask the hub.
    Rule(
        "nothing uses the command line",
        SHIPPED,
        ("kernels_hub.cli",),
        exempt=("kernels_hub.cli", "kernels_hub.__main__"),
    ),
    Rule(
        "a repository knows no models",
        ("kernels_hub.repository", "kernels_hub.hub", "kernels_hub.server"),
        ("kernels_hub.layer",),
    ),
    Rule("errors.py imports nothing", ("kernels_hub.errors",), ("kernels_hub", "torch", "huggingface_hub")),
    Rule(
        "the package does not depend on its tests",
        SHIPPED,
        ("tests", "benchmarks", "examples", "tools"),
    ),
)


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    return read_modules(ROOT)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_no_forbidden_import(rule: Rule, modules: list[Module]):
    assert [line for module in modules for line in rule.violations(module)] == []


def test_no_cycle(modules: list[Module]):
    assert [" -> ".join(ring) for ring in cycles(modules)] == []


def test_files_are_of_a_size_to_be_read():
    sources = source_files(ROOT, (".py", ".cpp", ".h", ".toml"))
    assert [f"{path}: {lines} lines" for path in sources if (lines := _lines(path)) > MAX_LINES] == []


def test_files_are_named_after_what_they_do():
    sources = source_files(ROOT, (".py", ".cpp", ".h", ".toml"))
    assert [str(path) for path in sources if NAMELESS.fullmatch(path.name)] == []


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


# -- the rules find what they are there to find -----------------------------------------------------

PLANTED = {
    "layers, mappings and compiler are imported from kernels_hub": [
        ("tests/test_x.py", "import layers.activation"),
        ("kernels_hub/layer/x.py", "from compiler import ir"),
        ("examples/x.py", "def f():\n    from mappings import y"),
    ],
    "only the command line uses the compiler": [
        ("kernels_hub/layer/x.py", "def f():\n    import kernels_hub.compiler.pipeline"),
        ("kernels_hub/x.py", "from kernels_hub import compiler"),
        ("kernels_hub/hub/x.py", "from ..compiler.ir import graph"),
        ("kernels_hub/hub/y.py", "import importlib\nimportlib.import_module('kernels_hub.compiler')"),
    ],
    "the compiler's front half knows no framework": [
        ("compiler/ir/x.py", "import torch.nn"),
        ("compiler/rewrite/rules/x.py", "def f():\n    from triton import language"),
        ("compiler/schedule/x.py", "try:\n    import torch\nexcept ImportError:\n    pass"),
    ],
    "only hub/ and server/ touch the network": [
        ("kernels_hub/repository/x.py", "def f():\n    from huggingface_hub import snapshot_download"),
        ("kernels_hub/layer/x.py", "from urllib import request"),
        ("layers/rotary/cpu/x.py", "import socket"),
    ],
    "a layer repository stands alone: other clients load it too": [
        ("layers/rotary/package/x.py", "from kernels_hub import Mode"),
    ],
    "nothing uses the command line": [
        ("kernels_hub/layer/x.py", "from kernels_hub.cli.output import print_json"),
    ],
    "a repository knows no models": [
        ("kernels_hub/repository/x.py", "from kernels_hub.layer.device import Device"),
        (
            "kernels_hub/hub/x.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import kernels_hub.layer.mode",
        ),
    ],
    "errors.py imports nothing": [("kernels_hub/errors.py", "from kernels_hub.layer.mode import Mode")],
    "the package does not depend on its tests": [("kernels_hub/layer/x.py", "from tests import tolerances")],
}

ALLOWED = [
    ("kernels_hub/cli/x.py", "from kernels_hub.compiler import pipeline\nfrom kernels_hub.layer import mode"),
    (
        "kernels_hub/repository/x.py",
        "import kernels_hub.layers\nfrom urllib.parse import quote\nfrom . import layers",
    ),
    ("kernels_hub/hub/x.py", "import huggingface_hub"),
    ("kernels_hub/layer/x.py", "import torch\nfrom kernels_hub.repository import refs"),
    ("layers/rotary/package/layers.py", "import torch\nfrom .kernels import rotate\nfrom . import reference"),
    ("compiler/engines/x.py", "import torch, triton"),
    ("tests/house/x.py", "from kernels_hub.layers import x\nfrom kernels_hub.compiler.ir import graph"),
]


def _plant(root: Path, name: str, text: str) -> list[Module]:
    path = root / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return read_modules(root)


def test_every_rule_has_planted_violations():
    assert set(PLANTED) == {rule.name for rule in RULES}


@pytest.mark.parametrize(
    ("rule", "name", "text"),
    [(rule, *planted) for rule in RULES for planted in PLANTED.get(rule.name, [])],
    ids=lambda value: value.name if isinstance(value, Rule) else None,
)
def test_a_planted_violation_is_found(rule: Rule, name: str, text: str, tmp_path: Path):
    (module,) = _plant(tmp_path, name, text)
    (line,) = rule.violations(module)
    assert name in line
    assert rule.name in line


@pytest.mark.parametrize(("name", "text"), ALLOWED)
def test_an_allowed_import_is_passed_over(name: str, text: str, tmp_path: Path):
    (module,) = _plant(tmp_path, name, text)
    assert [line for rule in RULES for line in rule.violations(module)] == []


def test_a_planted_cycle_is_found(tmp_path: Path):
    _plant(tmp_path, "kernels_hub/a/one.py", "from kernels_hub.a.two import f")
    (tmp_path / "kernels_hub/a/two.py").write_text("from . import three")
    (tmp_path / "kernels_hub/a/three.py").write_text("import kernels_hub.a.one")
    (ring,) = cycles(read_modules(tmp_path))
    assert set(ring) == {f"kernels_hub.a.{name}" for name in ("one", "two", "three")}
    assert ring[0] == ring[-1]


def test_late_imports_make_no_cycle(tmp_path: Path):
    _plant(tmp_path, "kernels_hub/a/one.py", "from kernels_hub.a.two import f")
    (tmp_path / "kernels_hub/a/two.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from kernels_hub.a.one import T\n"
        "def f():\n    from kernels_hub.a.one import g\n"
    )
    assert cycles(read_modules(tmp_path)) == []
