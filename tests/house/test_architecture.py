"""The arrows between modules that docs and design forbid, rings of modules, the sizes of files, and their names.

Every rule is a row. Each is also tested to find a violation that was planted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.architecture_map import room_arrows, rooms_of
from tools.import_graph import SourceModule, components, count_any, inside, read_modules, rings, source_files

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 600
NAMELESS = re.compile(r"(utils?|helpers?|common|misc)\.\w+")
NETWORK = (
    "aiohttp", "ftplib", "http", "httpx", "huggingface_hub", "requests", "socket", "socketserver", "ssl",
    "starlette", "urllib.request", "urllib3", "uvicorn",
)  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """Modules inside `who`, except those inside `exempt`, must not import anything inside `what`, except inside `but`."""

    name: str
    who: tuple[str, ...]
    what: tuple[str, ...]
    exempt: tuple[str, ...] = ()
    but: tuple[str, ...] = ()

    def violations(self, module: SourceModule) -> list[str]:
        if not any(inside(module.name, who) for who in self.who):
            return []
        if any(inside(module.name, exempt) for exempt in self.exempt):
            return []
        return [
            f"{module.path}:{item.line}: {module.name} imports {item.target} ({self.name})"
            for item in module.imports
            if any(inside(item.target, what) for what in self.what)
            and not any(inside(item.target, but) for but in self.but)
        ]


SHIPPED = ("kernels_hub", "bundled")
EVERYWHERE = (*SHIPPED, "tests", "benchmarks", "examples", "tools")

TARGETS = tuple(sorted(path.parent.name for path in (ROOT / "compiler" / "codegen").glob("*/target.py")))

SHIPPED_RULES = (
    "kernels_hub.compiler.runtime.errors", "kernels_hub.compiler.runtime.intervals", "kernels_hub.compiler.runtime.newest",
    "kernels_hub.compiler.runtime.sizes", "kernels_hub.compiler.runtime.tiles",
)  # fmt: skip
"""What the IR, scheduling and code generation may import of the runtime: how shapes are bound, where buffers lie in an
arena, and how large tiles are (and the mapping of caches). Exported layers decide both for the shapes that come, by the same rules, so these lie with what is shipped, and
import neither torch nor triton."""

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
        "graphs, schedules and generated code take shipped rules alone from the runtime",
        ("kernels_hub.compiler.ir", "kernels_hub.compiler.schedule", "kernels_hub.compiler.codegen"),
        ("kernels_hub.compiler.runtime",),
        but=SHIPPED_RULES,
    ),
    Rule(
        "shipped rules import no framework",
        SHIPPED_RULES,
        ("kernels_hub", "torch", "triton", "numpy"),
        but=(
            "kernels_hub.compiler.runtime.errors",
            "kernels_hub.compiler.runtime.newest",
            "kernels_hub.compiler.runtime.triton_versions",
        ),
    ),
    *(
        Rule(
            f"the target {one} knows no other target",
            (f"kernels_hub.compiler.codegen.{one}",),
            tuple(f"kernels_hub.compiler.codegen.{other}" for other in TARGETS if other != one),
        )
        for one in TARGETS
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
    # One way: cli -> kernelization -> hub, trust -> repository -> errors.
    Rule(
        "nothing uses the command line",
        SHIPPED,
        ("kernels_hub.cli",),
        exempt=("kernels_hub.cli", "kernels_hub.__main__"),
    ),
    Rule(
        "a repository knows no models",
        ("kernels_hub.repository", "kernels_hub.hub", "kernels_hub.trust", "kernels_hub.server"),
        ("kernels_hub.kernelization",),
    ),
    Rule(
        "what kernels gain is measured without knowing how they are chosen",
        ("kernels_hub.calibration",),
        ("kernels_hub.kernelization", "kernels_hub.hub", "kernels_hub.compiler"),
    ),
    Rule("a repository knows no Hub", ("kernels_hub.repository",), ("kernels_hub.hub", "kernels_hub.trust")),
    Rule("trust is decided from files alone", ("kernels_hub.trust",), ("kernels_hub.hub",)),
    Rule("errors.py imports nothing", ("kernels_hub.errors",), ("kernels_hub", "torch", "huggingface_hub")),
    Rule(
        "the package does not depend on its tests",
        SHIPPED,
        ("tests", "benchmarks", "examples", "tools"),
    ),
)


@pytest.fixture(scope="module")
def modules() -> list[SourceModule]:
    return read_modules(ROOT)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_no_forbidden_import(rule: Rule, modules: list[SourceModule]):
    assert [line for module in modules for line in rule.violations(module)] == []


ROOMS = {
    "kernels_hub/cli": (
        "kernels_hub/kernelization", "kernels_hub/server", "kernels_hub/hub", "kernels_hub/trust",
        "kernels_hub/repository", "kernels_hub/calibration",
        "compiler", "compiler/engines", "compiler/export", "compiler/importers", "compiler/ir", "compiler/plan",
        "compiler/rewrite", "compiler/runtime", "compiler/search", "compiler/viewing",
    ),
    "kernels_hub/server": ("kernels_hub/repository",),
    "kernels_hub/kernelization": (
        "kernels_hub/hub", "kernels_hub/repository", "kernels_hub/calibration", "mappings",
    ),
    "kernels_hub/hub": ("kernels_hub/trust", "kernels_hub/repository"),
    "kernels_hub/trust": ("kernels_hub/repository",),
    "kernels_hub/repository": (),
    "kernels_hub/calibration": (),
    "layers": (),
    "mappings": (),
    # Exporting writes layer repositories, and loads them to judge them; compiling layers at their first call besides
    # implements what kernelize asks for.
    "compiler/jit": (
        "compiler/export", "compiler/importers", "compiler/ir", "compiler/plan", "compiler/runtime", "kernels_hub/kernelization",
        "kernels_hub/repository",
    ),
    # A search reports on the machine and on GPU binaries as an export does.
    "compiler/search": (
        "compiler/export", "compiler/plan", "compiler/judging", "compiler/engines", "compiler/codegen",
        "compiler/schedule", "compiler/rewrite", "compiler/viewing", "compiler/runtime", "compiler/ir",
    ),
    # An ONNX file's layer is timed against PyTorch's kernels, op by op, where ONNX Runtime is not installed.
    "compiler/export": (
        "compiler", "compiler/judging", "compiler/engines", "compiler/codegen", "compiler/schedule", "compiler/autodiff",
        "compiler/rewrite", "compiler/importers", "compiler/viewing", "compiler/runtime", "compiler/ir",
        "kernels_hub/repository",
    ),
    "compiler/dynamo": ("compiler", "compiler/plan", "compiler/engines", "compiler/importers", "compiler/ir"),
    # Of the runtime, the mapping that caches are made of.
    "compiler": (
        "compiler/plan", "compiler/engines", "compiler/rewrite", "compiler/runtime", "compiler/importers", "compiler/ir",
    ),
    # A plan follows the weights of a module, whose arrays the importer of modules reads. Whether built code in its file
    # may run is asked of the trust policy as well.
    "compiler/plan": (
        "compiler/judging", "compiler/engines", "compiler/importers", "compiler/runtime", "compiler/ir",
        "kernels_hub/trust",
    ),
    # What a plan is tuned by, and an export is checked by. It runs programs of engines, and knows no plans.
    "compiler/judging": ("compiler/engines", "compiler/ir"),
    "compiler/engines": ("compiler/codegen", "compiler/schedule", "compiler/runtime", "compiler/ir"),
    # These and the IR to the runtime for `SHIPPED_RULES` alone.
    "compiler/codegen": ("compiler/schedule", "compiler/runtime", "compiler/ir"),
    "compiler/schedule": ("compiler/runtime", "compiler/ir"),
    "compiler/runtime": ("compiler/native",),
    "compiler/native": (),
    "compiler/autodiff": ("compiler/ir",),
    "compiler/rewrite": ("compiler/ir",),
    # What code of a module names is told as the runtime looks at it when it is called.
    # Backward ops of ATen are imported by the rules of derivatives.
    "compiler/importers": ("compiler/autodiff", "compiler/ir", "compiler/runtime"),
    "compiler/viewing": ("compiler/ir",),
    "compiler/ir": ("compiler/runtime",),
}  # fmt: skip
"""Room -> the rooms that its files may import. A room is a folder; "compiler" is the files right in it."""


def test_rooms_import_what_their_table_allows(modules: list[SourceModule]):
    actual = room_arrows(modules, rooms_of(ROOT), ROOT)
    assert {room: sorted(targets) for room, targets in actual.items()} == {
        room: sorted(ROOMS[room]) if room in ROOMS else "a new room: enter it in ROOMS" for room in actual
    }
    assert set(ROOMS) == set(actual)


def test_no_rooms_import_each_other_in_a_ring():
    assert [
        ring for ring in components({room: set(targets) for room, targets in ROOMS.items()}) if ring[1:]
    ] == []


ANY_IN_SIGNATURES = 833
"""How often `Any` stands in signatures of kernels_hub/ and compiler/, at most. It only falls."""
ANY_SLACK = 20
"""How far the count may fall before the limit has to follow."""


def test_no_modules_import_each_other_in_a_ring(modules: list[SourceModule]):
    """Imports in functions and under TYPE_CHECKING included."""
    assert rings(modules) == []


def test_any_in_signatures_does_not_grow():
    count = sum(count_any(path) for path in source_files(ROOT) if path.relative_to(ROOT).parts[0] in OWN)
    assert count <= ANY_IN_SIGNATURES, "name the types: an `Any` more in signatures than the limit"
    assert count > ANY_IN_SIGNATURES - ANY_SLACK, f"well done: set ANY_IN_SIGNATURES to {count}"


OWN = ("kernels_hub", "compiler")


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
        ("kernels_hub/kernelization/x.py", "from compiler import ir"),
        ("examples/x.py", "def f():\n    from mappings import y"),
    ],
    "only the command line uses the compiler": [
        ("kernels_hub/kernelization/x.py", "def f():\n    import kernels_hub.compiler.pipeline"),
        ("kernels_hub/x.py", "from kernels_hub import compiler"),
        ("kernels_hub/hub/x.py", "from ..compiler.ir import graph"),
        ("kernels_hub/hub/y.py", "import importlib\nimportlib.import_module('kernels_hub.compiler')"),
    ],
    "the compiler's front half knows no framework": [
        ("compiler/ir/x.py", "import torch.nn"),
        ("compiler/rewrite/rules/x.py", "def f():\n    from triton import language"),
        ("compiler/schedule/x.py", "try:\n    import torch\nexcept ImportError:\n    pass"),
    ],
    "graphs, schedules and generated code take shipped rules alone from the runtime": [
        ("compiler/ir/x.py", "from kernels_hub.compiler.runtime import layer"),
        ("compiler/schedule/x.py", "def f():\n    from kernels_hub.compiler.runtime.toolchain import build"),
        ("compiler/codegen/cpp/x.py", "from kernels_hub.compiler.runtime import intervalsofsome"),
    ],
    "shipped rules import no framework": [
        ("compiler/runtime/tiles.py", "import torch"),
        ("compiler/runtime/intervals.py", "def f():\n    from kernels_hub.compiler.ir import dims"),
    ],
    **{
        f"the target {one} knows no other target": [
            (f"compiler/codegen/{one}/x.py", f"from kernels_hub.compiler.codegen.{other}.text import Lines")
            for other in TARGETS
            if other != one
        ]
        for one in TARGETS
    },
    "only hub/ and server/ touch the network": [
        ("kernels_hub/repository/x.py", "def f():\n    from huggingface_hub import snapshot_download"),
        ("kernels_hub/kernelization/x.py", "from urllib import request"),
        ("layers/rotary/cpu/x.py", "import socket"),
    ],
    "a layer repository stands alone: other clients load it too": [
        ("layers/rotary/package/x.py", "from kernels_hub import Mode"),
    ],
    "nothing uses the command line": [
        ("kernels_hub/kernelization/x.py", "from kernels_hub.cli.output import print_json"),
    ],
    "what kernels gain is measured without knowing how they are chosen": [
        ("kernels_hub/calibration/x.py", "from kernels_hub.kernelization.apply import kernelize"),
        ("kernels_hub/calibration/y.py", "def f():\n    import kernels_hub.compiler"),
    ],
    "a repository knows no models": [
        ("kernels_hub/repository/x.py", "from kernels_hub.kernelization.device import Device"),
        (
            "kernels_hub/hub/x.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import kernels_hub.kernelization.mode",
        ),
    ],
    "a repository knows no Hub": [
        ("kernels_hub/repository/x.py", "def f():\n    from kernels_hub.hub.client import fetch"),
        ("kernels_hub/repository/y.py", "import kernels_hub.trust.keys"),
    ],
    "trust is decided from files alone": [("kernels_hub/trust/x.py", "from kernels_hub.hub import client")],
    "errors.py imports nothing": [
        ("kernels_hub/errors.py", "from kernels_hub.kernelization.mode import Mode")
    ],
    "the package does not depend on its tests": [
        ("kernels_hub/kernelization/x.py", "from tests import tolerances")
    ],
}

ALLOWED = [
    (
        "kernels_hub/cli/x.py",
        "from kernels_hub.compiler import pipeline\nfrom kernels_hub.kernelization import mode",
    ),
    (
        "kernels_hub/repository/x.py",
        "import kernels_hub.layers\nfrom urllib.parse import quote\nfrom . import layers",
    ),
    ("kernels_hub/hub/x.py", "import huggingface_hub"),
    ("kernels_hub/kernelization/x.py", "import torch\nfrom kernels_hub.repository import refs"),
    ("layers/rotary/package/layers.py", "import torch\nfrom .kernels import rotate\nfrom . import reference"),
    ("compiler/engines/x.py", "import torch, triton"),
    ("compiler/schedule/x.py", "from kernels_hub.compiler.runtime.intervals import pack"),
    ("tests/house/x.py", "from kernels_hub.layers import x\nfrom kernels_hub.compiler.ir import graph"),
]


def _plant(root: Path, name: str, text: str) -> list[SourceModule]:
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


RING = {
    "when they are imported": "from . import one",
    "in a function": "def f():\n    from kernels_hub.a.one import g",
    "for types": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from kernels_hub.a.one import T",
    "by a call": "import importlib\nimportlib.import_module('kernels_hub.a.one')",
    "by a relative call": "import importlib\nimportlib.import_module('.one', __package__)",
    "by a table": (
        "import importlib\nTABLE = {'x': 'kernels_hub.a.one'}\ndef f(x):\n    importlib.import_module(TABLE[x])"
    ),
    "by a table of functions": (
        "from importlib import import_module\nTABLE = ('kernels_hub.a.one:f',)\n"
        "def f(x):\n    return import_module(TABLE[x].partition(':')[0])"
    ),
    "by a table of short names": (
        "import importlib\nTABLE = ('one',)\ndef f(x):\n    importlib.import_module(f'kernels_hub.a.{TABLE[x]}')"
    ),
}


@pytest.mark.parametrize("back", RING.values(), ids=RING)
def test_a_planted_ring_is_found(back: str, tmp_path: Path):
    _plant(tmp_path, "kernels_hub/a/one.py", "from kernels_hub.a.two import f")
    (tmp_path / "kernels_hub/a/two.py").write_text("from . import three")
    (tmp_path / "kernels_hub/a/three.py").write_text(back)
    (tmp_path / "kernels_hub/a/four.py").write_text("import kernels_hub.a.one")
    (ring,) = rings(read_modules(tmp_path))
    assert ring == [f"kernels_hub.a.{name}" for name in ("one", "three", "two")]


def test_what_a_stub_imports_counts_for_its_module(tmp_path: Path):
    _plant(tmp_path, "kernels_hub/a/one.py", "from kernels_hub.a import two")
    (tmp_path / "kernels_hub/a/two.py").write_text("")
    (tmp_path / "kernels_hub/a/two.pyi").write_text("from kernels_hub.a.one import f as f")
    assert rings(read_modules(tmp_path)) == [["kernels_hub.a.one", "kernels_hub.a.two"]]


def test_what_is_no_import_makes_no_ring(tmp_path: Path):
    _plant(tmp_path, "kernels_hub/a/one.py", "from kernels_hub.a.two import f")
    (tmp_path / "kernels_hub/a/two.py").write_text(
        "import importlib\n"
        "NAME = 'kernels_hub.a.one'\n"  # in messages, say: nothing here imports a name that is not written out
        "importlib.import_module('json')\n"
    )
    (tmp_path / "kernels_hub/a/__init__.py").write_text(
        "import importlib\nPUBLIC = {'f': 'two'}\n"
        "def __getattr__(name):\n    return importlib.import_module(f'kernels_hub.a.{PUBLIC[name]}')\n"
    )
    assert rings(read_modules(tmp_path)) == []


def test_any_is_counted_in_signatures_alone(tmp_path: Path):
    path = tmp_path / "x.py"
    path.write_text(
        "from typing import Any\nimport typing\nx: Any = 1\n"
        "def f(a: Any, /, b: dict[str, Any], *c: typing.Any, d: 'list[Any]', **e: int) -> Any:\n"
        "    y: Any = 2\n    def g(z: object) -> Any: ...\n"
    )
    assert count_any(path) == 6
