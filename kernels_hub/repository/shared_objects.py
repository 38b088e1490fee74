"""Checks the compiled files of a variant: they may need what the variant's name promises, and nothing else.

    torch213-cu130-x86_64-linux            an x86_64 ELF file, glibc as in manylinux_2_28, libtorch
    torch-stable-abi210-cpu-aarch64-linux  the same for aarch64, of torch only its stable C interface
    tvm-ffi01-cu130-x86_64-linux           no torch at all

No name says a CPython version, so an extension module must be built for the stable ABI (`.abi3.so`)
and keep to it.
Sources: the manylinux policies of PyPA's auditwheel; PEP 384; torch's `torch/csrc/stable`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kernels_hub.errors import BuildError
from kernels_hub.repository.variants import Variant

MANYLINUX = (2, 28)
"""What Hugging Face's own builds promise: Debian 10, RHEL 8 and newer."""

_RUNTIME_LIMITS = {
    (2, 27): {"GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7,)},
    (2, 28): {"GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7,)},
    (2, 31): {"GLIBCXX": (3, 4, 28), "CXXABI": (1, 3, 12), "GCC": (7,)},
    (2, 34): {"GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (7,)},
    (2, 35): {"GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12,)},
    (2, 39): {"GLIBCXX": (3, 4, 33), "CXXABI": (1, 3, 15), "GCC": (14,)},
}
"""Of each manylinux policy, the newest symbol versions of the compiler's run-time libraries."""

_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
_SUFFIXES = (".so", ".dylib", ".dll", ".pyd")
_MAGIC = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
_GPU_MACHINES = {190, 224}
"""EM_CUDA and EM_AMDGPU: a cubin, an hsaco."""
_VERSION = re.compile(r"([A-Z]+)_(\d+(?:\.\d+)*)")
_TORCH_CXX = re.compile(r"_Z\w*?N?K?(?:2at|3c10|5torch)\d")
_SHOWN = 3

_SYSTEM_LIBRARIES = re.compile(
    r"lib(c|m|mvec|dl|rt|pthread|util|resolv|gcc_s|stdc\+\+|atomic|gomp|z)|ld-linux-[\w-]+|linux-vdso"
)
_TORCH_LIBRARIES = re.compile(r"lib(torch|c10|shm|caffe2)\w*")
_FFI_LIBRARIES = re.compile(r"libtvm_ffi\w*")
_BACKEND_LIBRARIES = {
    "cuda": re.compile(r"lib(cuda\w*|cu(blas|dnn|fft|rand|solver|sparse|file|pti|tensor)\w*|nv\w+|nccl)"),
    "rocm": re.compile(r"lib(amd\w+|hip\w*|hsa\w*|roc\w*|rccl|MIOpen\w*|comgr\w*)"),
    "xpu": re.compile(r"lib(sycl\w*|ze_\w+|OpenCL|svml|irng|imf|intlc|dnnl|mkl_\w+|ur_\w+)"),
    "npu": re.compile(r"lib(ascend\w*|acl\w*|runtime|hccl|nnopbase|opapi|ge_\w+|platform|torch_npu)"),
    "neuron": re.compile(r"lib(nrt|neuron\w*|nccom\w*)"),
}


@dataclass(frozen=True)
class SharedObject:
    """What an ELF file says of itself."""

    machine: str
    bits: int
    little_endian: bool
    kind: str
    needed: tuple[str, ...]
    rpaths: tuple[str, ...]
    versions: dict[str, tuple[str, ...]]
    """Library -> symbol versions that are needed of it, such as "GLIBC_2.34"."""
    undefined: frozenset[str]
    """Symbols that others must define."""
    exported: frozenset[str]


def is_native(inside: str, path: Path) -> bool:
    """Whether a file is compiled code for a CPU, by its name or its first bytes; GPU binaries need no system."""
    name = inside.rpartition("/")[2]
    if name.endswith(_SUFFIXES) or ".so." in name:
        return True
    with path.open("rb") as file:
        head = file.read(20)
    return head.startswith(_MAGIC[0]) and int.from_bytes(head[18:20], "little") not in _GPU_MACHINES


def read_shared_object(path: Path) -> SharedObject | None:
    """Read an ELF file; None when it is none, or broken.

    Raises BuildError where the packages that read it are not installed.
    """
    _need("elftools", "pyelftools")
    from elftools.common.exceptions import ELFError
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile

    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            dynamic = [section for section in elf.iter_sections() if isinstance(section, DynamicSection)]
            tags: list[Any] = [tag for section in dynamic for tag in section.iter_tags()]
            undefined, exported = _symbols(elf)
            return SharedObject(
                machine=str(elf["e_machine"]),
                bits=int(elf.elfclass),
                little_endian=bool(elf.little_endian),
                kind=str(elf["e_type"]),
                needed=tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"),
                rpaths=tuple(
                    part
                    for tag in tags
                    if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")
                    for part in (tag.rpath if tag.entry.d_tag == "DT_RPATH" else tag.runpath).split(":")
                ),
                versions=_versions(elf),
                undefined=undefined,
                exported=exported,
            )
    except (ELFError, ValueError, KeyError, AssertionError, UnicodeDecodeError):
        return None


def check_shared_object(
    inside: str, path: Path, variant: Variant, siblings: frozenset[str], manylinux: tuple[int, int]
) -> Iterator[str]:
    """What is wrong with one compiled file of a variant.

    siblings: the variant's compiled files, by their path inside, which it may need.
    Raises BuildError for a manylinux policy that is not known.
    """
    if variant.os != "linux":
        if path.read_bytes()[:4] == _MAGIC[0]:
            yield f"is an ELF file, for Linux, in a variant for {variant.os}"
        return
    shared_object = read_shared_object(path)
    if shared_object is None:
        yield "is not a whole ELF file, which is what compiled code for Linux is"
        return
    expected = _MACHINES.get(str(variant.cpu))
    if shared_object.kind != "ET_DYN":
        yield f"is not a shared object but {shared_object.kind}"
    if expected is not None and (shared_object.machine, shared_object.bits, shared_object.little_endian) != (
        expected,
        64,
        True,
    ):
        machine = shared_object.machine.removeprefix("EM_").lower()
        yield f"is compiled for {machine} ({shared_object.bits} bits), the variant is for {variant.cpu}"
    yield from _version_problems(shared_object, manylinux)
    yield from _library_problems(shared_object, variant, {name.rpartition("/")[2] for name in siblings})
    yield from _python_problems(inside, shared_object)
    yield from _torch_problems(shared_object, variant)


def _version_problems(found: SharedObject, manylinux: tuple[int, int]) -> Iterator[str]:
    policies = [policy for policy in _RUNTIME_LIMITS if policy <= manylinux]
    if not policies:
        raise BuildError(
            f"manylinux_{manylinux[0]}_{manylinux[1]} is not known; the oldest is "
            f"manylinux_{'_'.join(map(str, min(_RUNTIME_LIMITS)))}"
        )
    limits = {"GLIBC": manylinux, **_RUNTIME_LIMITS[max(policies)]}
    too_new: dict[str, tuple[int, ...]] = {}
    for name in (version for versions in found.versions.values() for version in versions):
        if (match := _VERSION.fullmatch(name)) is None or match[1] not in limits:
            continue
        version = tuple(map(int, match[2].split(".")))
        if version > limits[match[1]]:
            too_new[match[1]] = max(version, too_new.get(match[1], ()))
    for library, version in sorted(too_new.items()):
        newest, limit = ".".join(map(str, version)), ".".join(map(str, limits[library]))
        yield (
            f"needs {library}_{newest}, and manylinux_{manylinux[0]}_{manylinux[1]} has {limit}; "
            "build it in that image, or declare a newer one with --manylinux"
        )


def _library_problems(found: SharedObject, variant: Variant, siblings: set[str]) -> Iterator[str]:
    for rpath in found.rpaths:
        if not rpath.startswith("$ORIGIN"):
            yield f"has the run path {rpath!r} of the machine that built it; only $ORIGIN/… is portable"
    backend = _BACKEND_LIBRARIES.get(variant.backend)
    for needed in found.needed:
        name = needed.partition(".")[0]
        if _SYSTEM_LIBRARIES.fullmatch(name) or needed in siblings or _TORCH_LIBRARIES.fullmatch(name):
            continue
        if variant.framework == "tvm-ffi" and _FFI_LIBRARIES.fullmatch(name):
            continue
        if backend is None or not backend.fullmatch(name):
            other = next((b for b, known in _BACKEND_LIBRARIES.items() if known.fullmatch(name)), None)
            whose = f", which is of {other}" if other else ", which nothing that the variant names brings"
            yield f"needs the library {needed}{whose}; link it statically or ship it beside"


def _python_problems(inside: str, found: SharedObject) -> Iterator[str]:
    modules = sorted(name for name in found.exported if name.startswith("PyInit_"))
    python = {name for name in found.undefined if name.startswith(("Py", "_Py"))}
    if any(needed.startswith("libpython") for needed in found.needed):
        yield "links libpython, which belongs to one CPython version"
    if (modules or python) and not inside.endswith(".abi3.so"):
        yield (
            "is an extension module for one CPython version, and the variant promises any; build it for the "
            "stable ABI (Py_LIMITED_API), under a name that ends with .abi3.so"
        )
    elif python:
        _need("abi3info", "abi3info")
        from abi3info import DATAS, FUNCTIONS  # type: ignore[import-untyped]

        stable = {symbol.name for symbol in (*FUNCTIONS, *DATAS)}
        if foreign := sorted(python - stable):
            yield f"uses {_some(foreign)}, which CPython's stable ABI does not hold"


def _torch_problems(found: SharedObject, variant: Variant) -> Iterator[str]:
    cxx = sorted(name for name in found.undefined if _TORCH_CXX.match(name))
    torch = [name for name in found.needed if _TORCH_LIBRARIES.fullmatch(name.partition(".")[0])]
    if variant.framework == "tvm-ffi":
        if cxx or torch:
            yield f"needs torch ({_some(cxx or torch)}), and a tvm-ffi variant promises to run without"
    elif variant.framework == "torch-stable-abi":
        if cxx:
            yield (
                f"uses C++ symbols of libtorch ({_some(cxx)}), which change with every torch; "
                "a stable-abi variant may use torch/csrc/stable and its C functions only"
            )
        if any(name.startswith("libtorch_python") for name in torch):
            yield "links libtorch_python, which is not part of torch's stable ABI"
    elif variant.cxx11_abi is False and any("cxx11" in name for name in cxx):
        yield "uses the C++11 ABI of libtorch, and the variant is named cxx98"


def _need(module: str, package: str) -> None:
    if find_spec(module) is None:
        raise BuildError(
            f"native files are checked with {package}, which is not installed: pip install 'kernels-hub[build]'"
        )


def _some(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _versions(elf: Any) -> dict[str, tuple[str, ...]]:
    from elftools.elf.gnuversions import GNUVerNeedSection

    return {
        str(version.name): tuple(str(auxiliary.name) for auxiliary in auxiliaries)
        for section in elf.iter_sections()
        if isinstance(section, GNUVerNeedSection)
        for version, auxiliaries in section.iter_versions()
    }


def _symbols(elf: Any) -> tuple[frozenset[str], frozenset[str]]:
    """Names of the dynamic symbols: undefined (weak ones left out: they may stay so), and defined."""
    undefined, exported = set(), set()
    table = elf.get_section_by_name(".dynsym")
    for symbol in () if table is None else table.iter_symbols():
        if not symbol.name:
            continue
        if symbol["st_shndx"] != "SHN_UNDEF":
            exported.add(symbol.name)
        elif symbol["st_info"]["bind"] != "STB_WEAK":
            undefined.add(symbol.name)
    return frozenset(undefined), frozenset(exported)
