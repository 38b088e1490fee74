"""Checks of a repository before it is built: each finds what was planted, at its file and line."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels_hub.errors import BuildError
from kernels_hub.repository.build import build_repository
from kernels_hub.repository.bundled import bundled_folder, bundled_names
from kernels_hub.repository.check import check_kernels, check_repository
from kernels_hub.repository.load import KernelFiles
from kernels_hub.repository.source import read_source_repository

MANIFEST = """
[kernel]
name = "scale"
version = "1.0.0"
license = "MIT"
summary = "scales"
layers = ["Scale"]
functions = ["scale"]
kernel-depends = [{ repo-id = "org/other", version = 1 }]

[backends.cpu]
sources = ["package", "cpu"]

[backends.cuda]
sources = ["package", "triton"]
python-depends = ["triton", "my-package"]
"""

LAYERS = """\
from torch import nn
from .kernels import double

class Scale(nn.Module):
    has_backward: bool = True

    def forward(self, x):
        return double(x)
"""

GOOD = {
    "kernel.toml": MANIFEST,
    "package/__init__.py": "from . import layers\nfrom .kernels import double as scale\n",
    "package/layers.py": LAYERS,
    "cpu/kernels.py": "def double(x):\n    return x * 2\n",
    "triton/kernels.py": "import triton\nimport my_package\n\ndef double(x):\n    return x * 2\n",
}


@pytest.fixture
def source(tmp_path: Path, write_files) -> Path:
    return write_files(tmp_path / "scale", GOOD)


def problems(source: Path, backends: list[str] | None = None) -> list[str]:
    try:
        check_repository(read_source_repository(source), backends)
    except BuildError as error:
        head, *lines = str(error).splitlines()
        assert head.startswith("kernel 'scale' has ")
        return [line.strip().replace(f"{source}/", "") for line in lines]
    return []


@pytest.mark.parametrize("name", bundled_names())
def test_the_bundled_repositories_pass(name: str):
    check_repository(read_source_repository(bundled_folder() / name))


def test_a_good_one_passes(source: Path):
    assert problems(source) == []


PLANTED: dict[str, tuple[str, str, list[str]]] = {
    "constructor": (
        "package/layers.py",
        LAYERS + "    def __init__(self):\n        super().__init__()\n",
        ["package/layers.py:9: layer Scale defines __init__: a layer is stateless"],
    ),
    "method, attribute and code": (
        "package/layers.py",
        LAYERS + "    size = 3\n    def helper(self): ...\n    print(size)\n    note: str\n",
        [
            "package/layers.py:9: layer Scale defines size: besides forward",
            "package/layers.py:10: layer Scale defines helper: besides forward",
            "package/layers.py:11: layer Scale defines code (print(size))",
        ],
    ),
    "state in a base": (
        "package/layers.py",
        (
            "import torch\nclass _Base(torch.nn.Module):\n    state = 1\nclass Scale(_Base):\n"
            "    def forward(self, x): ...\n"
        ),
        ["package/layers.py:3: layer Scale (through _Base) defines state"],
    ),
    "no forward": (
        "package/layers.py",
        "import torch.nn as nn\nclass Scale(nn.Module):\n    pass\n",
        ["package/layers.py:2: layer Scale defines no forward"],
    ),
    "forward without self": (
        "package/layers.py",
        "from torch.nn import Module as M\nclass Scale(M):\n    @staticmethod\n    def forward(x): ...\n",
        [
            "package/layers.py:4: layer Scale: forward must be a plain method",
            "package/layers.py:4: layer Scale: the first argument of forward must be self",
        ],
    ),
    "forward that keeps state": (
        "package/layers.py",
        (
            "from torch import nn\nclass Scale(nn.Module):\n    def forward(self, x):\n        self.seen = x\n"
            "        self.n += 1\n        del self.weight\n        self.seen.grad = None\n        return self.n\n"
        ),
        [
            "package/layers.py:4: layer Scale: forward changes self.seen",
            "package/layers.py:5: layer Scale: forward changes self.n",
            "package/layers.py:6: layer Scale: forward changes self.weight",
        ],
    ),
    "async forward": (
        "package/layers.py",
        "from torch import nn\nclass Scale(nn.Module):\n    async def forward(self, x): ...\n",
        ["package/layers.py:3: layer Scale: forward must not be async"],
    ),
    "no module": (
        "package/layers.py",
        "class Scale:\n    def forward(self, x): ...\n",
        ["package/layers.py:1: layer Scale does not subclass torch.nn.Module"],
    ),
    "another base": (
        "package/layers.py",
        "from torch import nn\nclass Scale(nn.Linear):\n    def forward(self, x): ...\n",
        [
            "package/layers.py:2: layer Scale does not subclass torch.nn.Module",
            "package/layers.py:2: layer Scale inherits from torch.nn.Linear, whose members",
        ],
    ),
    "function as layer": (
        "package/layers.py",
        "def Scale(x): ...\n",
        ["package/layers.py:1: layer Scale is not a class"],
    ),
    "listed layer missing": (
        "package/layers.py",
        LAYERS.replace("Scale", "_Scale"),
        ["package/layers.py: does not define the layer 'Scale' that is listed"],
    ),
    "unlisted layer": (
        "package/layers.py",
        LAYERS + "class Other(Scale): ...\n",
        ["package/layers.py:9: class Other is a public layer that is not listed"],
    ),
    "layers not imported": (
        "package/__init__.py",
        "from .kernels import double as scale\n",
        ["package/__init__.py: does not import its layers, so no client finds them"],
    ),
    "layers imported by name": (
        "package/__init__.py",
        "from .layers import Scale\nfrom .kernels import double as scale\n",
        [],
    ),
    "listed function missing": (
        "package/__init__.py",
        "from . import layers\n",
        ["package/__init__.py: does not define the function 'scale' that is listed"],
    ),
    "undeclared imports": (
        "cpu/kernels.py",
        (
            "import numpy.linalg, os\nimport triton\n\ndef double(x):\n    from scipy import special\n"
            "    return __import__('yaml')\n"
        ),
        [
            "cpu/kernels.py:1: imports numpy.linalg, which is not declared; add 'numpy' to",
            "cpu/kernels.py:2: imports triton, which is not declared; add 'triton' to",
            "cpu/kernels.py:5: imports scipy, which is not declared",
            "cpu/kernels.py:6: imports yaml, which is not declared",
        ],
    ),
    "optional imports": (
        "cpu/kernels.py",
        (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy\ntry:\n    import scipy\n"
            "except ImportError:\n    scipy = None\ndef double(x): ...\n"
        ),
        [],
    ),
    "an import that fails differently": (
        "cpu/kernels.py",
        (
            "try:\n    import scipy\nexcept ImportError as error:\n    raise RuntimeError from error\n"
            "def double(x): ...\n"
        ),
        ["cpu/kernels.py:2: imports scipy, which is not declared"],
    ),
    "its own name": (
        "package/__init__.py",
        "import scale.layers\nfrom . import layers\nfrom .kernels import double as scale\n",
        ["package/__init__.py:1: imports scale.layers by its own name"],
    ),
    "beyond the package": (
        "package/layers.py",
        LAYERS.replace("from .kernels", "from ..kernels"),
        ["package/layers.py:2: imports ..kernels, which lies outside of the package"],
    ),
    "a module that is not there": (
        "package/layers.py",
        LAYERS + "from .missing import x\nfrom . import absent\n",
        [
            "package/layers.py:9: imports .missing, which no source folder",
            "package/layers.py:10: imports absent from .",
        ],
    ),
    "a name that one backend lacks": (
        "cpu/kernels.py",
        "def other(x): ...\n",
        [
            "package/__init__.py:2: imports double from .kernels, which does not define it (in torch-cpu)",
            "package/__init__.py: does not define the function 'scale'",
            "package/layers.py:2: imports double from .kernels, which does not define it (in torch-cpu)",
        ],
    ),
    "an alias of a builtin": ("cpu/kernels.py", "double = abs\n", []),
    "an alias of something else's": ("cpu/kernels.py", "import math\ndouble = math.sin\n", []),
    "what every module has": (
        "package/__init__.py",
        "from . import layers\nfrom .kernels import __doc__, double as scale\n",
        [],
    ),
    "defined in a branch": (
        "cpu/kernels.py",
        "import sys\nif sys.platform == 'linux':\n    def double(x): ...\nelse:\n    double = None\n",
        [],
    ),
    "unpacked, from a with and from a loop": (
        "cpu/kernels.py",
        "(double, *others), two = (abs, 1), 2\nfor double in (abs,): pass\n",
        [],
    ),
    "names that only running it defines": (
        "cpu/kernels.py",
        "globals().update(double=abs)\n",
        [],
    ),
    "the client": (
        "cpu/kernels.py",
        (
            "from kernels import get_kernel_dep\nimport kernels_hub\nother = get_kernel_dep('org/other')\n"
            "that = get_kernel_dep('org/that')\ndef double(x): ...\n"
        ),
        [
            "cpu/kernels.py:2: imports kernels_hub: of the client a kernel may import get_kernel_dep",
            "cpu/kernels.py:4: uses the kernel 'org/that', which is not declared",
        ],
    ),
    "syntax": ("cpu/kernels.py", "def (:\n", ["cpu/kernels.py:1: does not parse"]),
}


@pytest.mark.parametrize("case", PLANTED)
def test_planted(case: str, source: Path):
    file, text, expected = PLANTED[case]
    (source / file).write_text(text)
    found = problems(source)
    assert len(found) == len(expected), found
    for line in expected:
        assert any(line.split(" (in ")[0] in other for other in found), (line, found)
        if " (in " in line:
            assert line in found


def test_layers_are_not_imported(source: Path):
    """Nothing imports layers.py: `module.layers` would not be there."""
    (source / "package" / "__init__.py").write_text("from . import nothing as layers\nscale = 1\n")
    (source / "package" / "layers.py").rename(source / "package" / "other.py")
    found = problems(source)
    assert any(
        "the package has no layers.py; it has __init__.py, kernels.py, other.py" in line for line in found
    )


def test_only_the_wanted_backends(source: Path):
    (source / "triton" / "kernels.py").write_text("import numpy\ndef double(x): ...\n")
    assert problems(source, ["cpu"]) == []
    assert problems(source, ["cuda", "cuda"]) != []


def test_a_build_that_is_refused_writes_nothing(source: Path, tmp_path: Path):
    (source / "cpu" / "kernels.py").write_text("import numpy\ndef double(x): ...\n")
    with pytest.raises(BuildError, match="has 1 problem, nothing was written"):
        build_repository(source, tmp_path / "out", check=True)
    assert not (tmp_path / "out").exists()
    build_repository(source, tmp_path / "out", ["cuda"], check=True)
    assert [path.name for path in (tmp_path / "out" / "build").iterdir()] == ["torch-cuda"]


# -- native files -------------------------------------------------------------------------------------

CPU = "torch213-cpu-x86_64-linux"
STABLE = "torch-stable-abi210-cpu-x86_64-linux"

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


@pytest.fixture
def compile_shared(tmp_path: Path) -> Callable[..., Path]:
    def compile_shared(source: str, name: str, *flags: str) -> Path:
        (tmp_path / "source.c").write_text(source)
        target = tmp_path / name
        command = ["gcc", "-shared", "-fPIC", str(tmp_path / "source.c"), "-o", str(target), *flags]
        subprocess.run(command, check=True, capture_output=True)
        return target

    return compile_shared


def native_problems(variant: str, *paths: Path, manylinux: tuple[int, int] = (2, 28)) -> str:
    kernel = KernelFiles("scale", variant, (paths[0].parent,), {path.name: path for path in paths})
    try:
        check_kernels([kernel], manylinux=manylinux)
    except BuildError as error:
        return str(error)
    return ""


NEW_GLIBC = 'extern int foo(void); __asm__(".symver foo, foo@GLIBC_2.34"); int f(void) { return foo(); }'
PTHREAD = "#include <pthread.h>\nint f(void) { pthread_t t; return pthread_create(&t, 0, 0, 0); }"


@needs_compiler
def test_native_code_that_keeps_its_promise(compile_shared):
    plain = compile_shared("int f(int x) { return 2 * x; }", "libscale.so")
    assert native_problems(CPU, plain) == ""
    python = compile_shared("extern void *PyLong_FromLong(long); void *PyInit_m(void) { return PyLong_FromLong(1); }",
                            "m.abi3.so")  # fmt: skip
    assert native_problems(CPU, python) == ""


@needs_compiler
@pytest.mark.parametrize(
    ("code", "name", "flags", "variant", "expected"),
    [
        ("int f;", "m.so", (), "torch-cpu", "is compiled code, and torch-cpu promises to run on any CPU"),
        ("int f;", "m.so", (), "torch213-cpu-aarch64-linux", "is compiled for x86_64 (64 bits), the variant is"),
        (PTHREAD, "m.so", (), CPU, "needs GLIBC_2.34, and manylinux_2_28 has 2.28"),
        ("int f;", "m.so", ("-Wl,-rpath,/home/me/lib",), CPU, "has the run path '/home/me/lib'"),
        ("void *PyInit_m(void) { return 0; }", "m.cpython-311-x86_64-linux-gnu.so", (), CPU, "for one CPython version"),
        ("void *PyInit_m(void) { return 0; }", "m.so", (), CPU, "for one CPython version"),
        (
            "extern void *_PyObject_New2(void); void *PyInit_m(void) { return _PyObject_New2(); }",
            "m.abi3.so", (), CPU, "uses _PyObject_New2, which CPython's stable ABI does not hold",
        ),
        ("extern int _ZN2at5zerosEv(void); int f(void) { return _ZN2at5zerosEv(); }", "m.so", (), STABLE,
         "uses C++ symbols of libtorch (_ZN2at5zerosEv)"),
        ("extern int _ZN2at5zerosEv(void); int f(void) { return _ZN2at5zerosEv(); }", "m.so", (),
         "tvm-ffi01-cpu-x86_64-linux", "a tvm-ffi variant promises to run without"),
    ],
)  # fmt: skip
def test_native_code_that_does_not(code, name, flags, variant, expected, compile_shared):
    found = native_problems(variant, compile_shared(code, name, *flags))
    assert expected in found, found
    assert found.count("\n") == 1, found


@needs_compiler
def test_a_newer_glibc_may_be_declared(compile_shared):
    assert native_problems(CPU, compile_shared(PTHREAD, "m.so"), manylinux=(2, 34)) == ""


@needs_compiler
def test_libraries(compile_shared, tmp_path: Path):
    other = compile_shared("int g(void) { return 1; }", "libother.so")
    user = compile_shared(
        "extern int g(void); int f(void) { return g(); }", "m.so", "-L", str(tmp_path), "-lother"
    )
    assert "needs the library libother.so, which nothing" in native_problems(CPU, user)
    assert native_problems(CPU, user, other) == ""
    cuda = compile_shared("int g(void) { return 1; }", "libcudart.so.13", "-Wl,-soname,libcudart.so.13")
    (tmp_path / "libcudart.so").symlink_to(cuda)
    needs_cuda = compile_shared(
        "extern int g(void); int f(void) { return g(); }", "m.so", "-L", str(tmp_path), "-lcudart"
    )
    assert "needs the library libcudart.so.13, which is of cuda" in native_problems(CPU, needs_cuda)
    assert native_problems("torch213-cu130-x86_64-linux", needs_cuda) == ""


def test_a_file_that_is_no_elf(tmp_path: Path):
    (tmp_path / "m.so").write_bytes(b"\x7fELF" + b"\0" * 40)
    assert "is not a whole ELF file" in native_problems(CPU, tmp_path / "m.so")
    (tmp_path / "m.so").write_bytes(b"not at all")
    assert "is not a whole ELF file" in native_problems(CPU, tmp_path / "m.so")


@needs_compiler
@pytest.mark.parametrize("package", ["elftools", "abi3info"])
def test_without_the_packages_that_read_native_files(
    package: str, compile_shared, monkeypatch: pytest.MonkeyPatch
):
    from kernels_hub.repository import shared_objects

    def find_spec(name: str) -> object:
        return None if name == package else object()

    monkeypatch.setattr(shared_objects, "find_spec", find_spec)
    code = "extern void *PyLong_FromLong(long); void *PyInit_m(void) { return PyLong_FromLong(1); }"
    found = native_problems(CPU, compile_shared(code, "m.abi3.so"))
    assert f"{package.replace('elftools', 'pyelftools')}, which is not installed: pip install" in found
