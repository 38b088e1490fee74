"""Build variants: what a folder's name says, which ones run here, and which of those is best.

    torch-cuda                                  noarch: any torch, any CPU and OS; one backend
    torch-universal                             noarch: every backend
    torch213-cu130-x86_64-linux                 arch: this torch, CUDA version, CPU and OS
    torch213-cxx11-cu130-x86_64-linux           the same, with the C++ ABI that old builds name
    torch-stable-abi210-cu130-x86_64-linux      arch: torch's stable ABI, of this version or newer
    tvm-ffi01-cu130-x86_64-linux                arch: the tvm-ffi ABI, whatever the torch

Names and rules are those of Hugging Face's `kernels`, so that both clients choose alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kernels_hub.errors import MetadataError
from kernels_hub.repository.backends import BACKENDS, UNIVERSAL, Backend
from kernels_hub.repository.system import System, Version

_NOARCH = re.compile(r"torch-([a-z][a-z0-9_]*)", re.ASCII)
_ARCH = re.compile(
    r"(?:torch(?P<torch>\d\d+)(?:-(?P<abi>cxx11|cxx98))?|torch-stable-abi(?P<stable>\d\d+)|tvm-ffi(?P<ffi>\d\d+))"
    r"-(?P<backend>[a-z]+)(?P<version>\d*)-(?P<cpu>[A-Za-z0-9_]+)-(?P<os>[A-Za-z0-9_]+)",
    re.ASCII,
)
_FRAMEWORKS = {"torch": "torch", "stable": "torch-stable-abi", "ffi": "tvm-ffi"}
_BY_SPELLING = {backend.spelling: backend for backend in BACKENDS.values()}
_METAL_MIN_MACOS = (26, 0)
"""Metal variants are compiled for Metal 4 and do not name it; older systems fail at run time."""


@dataclass(frozen=True)
class Variant:
    """A variant's name, parsed. `str` gives the name back.

    >>> Variant.parse("torch213-cu130-x86_64-linux").backend_version
    (13, 0)
    """

    framework: str
    """"torch", "torch-stable-abi" or "tvm-ffi"."""
    framework_version: Version | None
    """None in a noarch variant."""
    cxx11_abi: bool | None
    """True and False for the tags cxx11 and cxx98, None without one."""
    backend: str
    """A key of `BACKENDS`; in a noarch variant also "universal", or a backend unknown here."""
    backend_version: Version | None
    cpu: str | None
    os: str | None

    @staticmethod
    def parse(name: str) -> Variant:
        """The variant of that name. Raises MetadataError (a ValueError) saying what is wrong."""
        if noarch := _NOARCH.fullmatch(name):
            return Variant("torch", None, None, noarch[1], None, None, None)
        if (match := _ARCH.fullmatch(name)) is None:
            raise MetadataError(
                f"{name!r} does not name a variant: expected torch-<backend> or "
                "<framework>-<backend>-<cpu>-<os>, as in torch213-cu130-x86_64-linux"
            )
        spelled = match["backend"] + match["version"]
        backend = _BY_SPELLING.get(match["backend"])
        if backend is None:
            known = ", ".join(map(_expected_spelling, BACKENDS.values()))
            raise MetadataError(f"{name!r}: unknown backend {spelled!r}; known: {known}")
        if len(match["version"]) < 2 if backend.versioned else match["version"]:
            expected = _expected_spelling(backend)
            raise MetadataError(f"{name!r}: backend {spelled!r} should read {expected!r}")
        group = next(group for group in _FRAMEWORKS if match[group] is not None)
        variant = Variant(
            framework=_FRAMEWORKS[group],
            framework_version=(int(match[group][0]), int(match[group][1:])),
            cxx11_abi=None if match["abi"] is None else match["abi"] == "cxx11",
            backend=backend.name,
            # "cann850" does not say where the minor version begins: its last digit, as HF's client has it.
            backend_version=(int(spelled[len(backend.spelling) : -1]), int(spelled[-1]))
            if backend.versioned
            else None,
            cpu=match["cpu"],
            os=match["os"],
        )
        if str(variant) != name:
            raise MetadataError(f"{name!r} is not how its variant is spelled; rename the folder to {variant}")
        return variant

    @property
    def noarch(self) -> bool:
        """Whether it holds no compiled code, and so fits any torch, CPU and OS."""
        return self.framework_version is None

    @property
    def variant_str(self) -> str:
        """The name, as Hugging Face's `kernels` calls it."""
        return str(self)

    @property
    def arch_backend(self) -> str:
        """The backend as arch variants spell it, version included: "cu130", "cpu"."""
        return _spelled(self.backend, self.backend_version)

    def __str__(self) -> str:
        if self.framework_version is None:
            return f"torch-{self.backend}"
        framework = f"{self.framework}{self.framework_version[0]}{self.framework_version[1]}"
        if self.cxx11_abi is not None:
            framework += "-cxx11" if self.cxx11_abi else "-cxx98"
        return f"{framework}-{self.arch_backend}-{self.cpu}-{self.os}"


@dataclass(frozen=True)
class UnknownVariant:
    """A folder among the variants whose name does not parse."""

    name: str

    @property
    def variant_str(self) -> str:
        """The folder's name."""
        return self.name

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class VariantAccepted:
    """A variant that runs on the system it was judged against."""

    variant: Variant

    def __str__(self) -> str:
        return f"{self.variant}: compatible"


@dataclass(frozen=True)
class VariantRejected:
    """A variant that does not, and why."""

    variant: Variant | UnknownVariant
    reason: str

    def __str__(self) -> str:
        return f"{self.variant}: {self.reason}"


@dataclass(frozen=True)
class Ranking:
    """Every variant of a repository, judged against one system."""

    accepted: tuple[VariantAccepted, ...]
    """Best first."""
    rejected: tuple[VariantRejected, ...]
    """By name."""

    @property
    def best(self) -> Variant | None:
        """The variant to use."""
        return self.accepted[0].variant if self.accepted else None

    @property
    def decisions(self) -> list[VariantAccepted | VariantRejected]:
        """Accepted ones best first, then the rejected ones."""
        return [*self.accepted, *self.rejected]

    def __str__(self) -> str:
        return "\n".join(str(decision) for decision in self.decisions)


def rank(names: Iterable[str], system: System) -> Ranking:
    """Judge variants by name against a system. Neither order nor repetition of the names matters."""
    accepted: list[Variant] = []
    rejected: list[VariantRejected] = []
    for name in sorted(set(names)):
        try:
            variant = Variant.parse(name)
        except MetadataError as error:
            rejected.append(VariantRejected(UnknownVariant(name), str(error)))
            continue
        reason = rejection(variant, system)
        if reason is None:
            accepted.append(variant)
        else:
            rejected.append(VariantRejected(variant, reason))
    accepted.sort(key=_preference)
    return Ranking(tuple(VariantAccepted(variant) for variant in accepted), tuple(rejected))


def rejection(variant: Variant, system: System) -> str | None:
    """Why a variant does not run on a system; None when it does."""
    if variant.noarch:
        if variant.backend in (system.backend, UNIVERSAL):
            return None
        return f"it is for backend {variant.backend}, not {system.backend}"
    if system.free_threaded:
        return "it is compiled for Python's stable ABI, which free-threaded Python before 3.15 lacks"
    if variant.cpu != system.cpu:
        return f"it is for CPU {variant.cpu}, not {system.cpu}"
    if variant.os != system.os:
        return f"it is for OS {variant.os}, not {system.os}"
    return _FRAMEWORK_RULES[variant.framework](variant, system) or _backend_rejection(variant, system)


def _torch_rejection(variant: Variant, system: System) -> str | None:
    if variant.framework_version != system.torch_version:
        required, here = _dotted(variant.framework_version), _dotted(system.torch_version)
        return f"it is for torch {required}, here is {here}"
    if variant.cxx11_abi is not None and variant.cxx11_abi != system.cxx11_abi:
        return f"it is for the C++ ABI {_abi(variant.cxx11_abi)}, torch here has {_abi(system.cxx11_abi)}"
    return None


def _stable_abi_rejection(variant: Variant, system: System) -> str | None:
    assert variant.framework_version is not None
    if system.torch_version is None or variant.framework_version > system.torch_version:
        return (
            f"it needs torch {_dotted(variant.framework_version)} or newer for its stable ABI, "
            f"here is {_dotted(system.torch_version)}"
        )
    return None


def _tvm_ffi_rejection(variant: Variant, system: System) -> str | None:
    if variant.framework_version != system.tvm_ffi_version:
        required, here = _dotted(variant.framework_version), _dotted(system.tvm_ffi_version)
        return f"it is for tvm-ffi {required}, here is {here}"
    return None


_FRAMEWORK_RULES: dict[str, Callable[[Variant, System], str | None]] = {
    "torch": _torch_rejection,
    "torch-stable-abi": _stable_abi_rejection,
    "tvm-ffi": _tvm_ffi_rejection,
}


def _backend_rejection(variant: Variant, system: System) -> str | None:
    if variant.backend != system.backend:
        return f"it is for backend {variant.backend}, not {system.backend}"
    if variant.backend == "metal":
        if system.os_version is None or system.os_version < _METAL_MIN_MACOS:
            return (
                f"it needs macOS {_dotted(_METAL_MIN_MACOS)} or newer, here is {_dotted(system.os_version)}"
            )
        return None
    if variant.backend_version is None:
        return None
    if system.backend_version is None:
        return f"it is for {variant.arch_backend}, and the version of {system.backend} is unknown here"
    if variant.backend == "cuda":
        same_major = variant.backend_version[0] == system.backend_version[0]
        if same_major and variant.backend_version[1] <= system.backend_version[1]:
            return None
        required, here = _dotted(variant.backend_version), _dotted(system.backend_version)
        return f"it is for CUDA {required}, torch here has {here}"
    # The spellings, not the parsed versions, which are a guess for versions of three digits and more.
    if variant.arch_backend != (here := _spelled(system.backend, system.backend_version)):
        return f"it is for {variant.arch_backend}, torch here has {here}"
    return None


def _preference(variant: Variant) -> tuple[int, int, int, int, int, str]:
    """Sort key, best first: stable ABI (newest first), torch without and then with an ABI tag,
    tvm-ffi, noarch, universal; among equals the newest backend; the name decides the rest."""
    name = str(variant)
    if variant.framework_version is None:
        return (4 if variant.backend == UNIVERSAL else 3, 0, 0, 0, 0, name)
    order = {"torch-stable-abi": 0, "torch": 1, "tvm-ffi": 2}[variant.framework]
    major, minor = variant.framework_version
    backend_major, backend_minor = variant.backend_version or (0, 0)
    if variant.framework == "torch":
        return (order, int(variant.cxx11_abi is not None), 0, -backend_major, -backend_minor, name)
    return (order, -major, -minor, -backend_major, -backend_minor, name)


def _expected_spelling(backend: Backend) -> str:
    return f"{backend.spelling}<major><minor>" if backend.versioned else backend.spelling


def _spelled(backend: str, version: Version | None) -> str:
    return BACKENDS[backend].spelling + ("" if version is None else f"{version[0]}{version[1]}")


def _dotted(version: Version | None) -> str:
    return "none" if version is None else f"{version[0]}.{version[1]}"


def _abi(cxx11: bool | None) -> str:
    return {True: "cxx11", False: "cxx98", None: "none"}[cxx11]
