"""The checks of `kernels-hub doctor`: what this machine has, what that means, and the next step.

A check reads the machine and returns findings. It reaches no network, and leaves nothing behind: a compiler is tried in
a temporary folder, a folder is asked whether it can be written to. A check that raises is a finding itself.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import locale
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType

from packaging.requirements import Requirement
from packaging.version import Version

CXX_TIMEOUT_S = 60
_PROGRAM = """
#include <omp.h>
#include <immintrin.h>
extern "C" int threads() { return omp_get_max_threads(); }
"""


class Status(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"  # something is slower or not used, and nothing is wrong
    PROBLEM = "problem"  # something that was asked for, or is needed, does not work


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str
    status: Status
    found: str
    meaning: str
    next_step: str = ""


def check_platform() -> Iterator[Finding]:
    """Python, the operating system, its C library and locale."""
    python = platform.python_version()
    system = f"{platform.system()} {platform.machine()}"
    libc = " ".join(platform.libc_ver()).strip()
    found = f"Python {python}, {system}" + (f", {libc}" if libc else "")
    if sys.platform == "linux" and platform.machine() == "x86_64":
        yield Finding("platform", Status.OK, found, "Native kernels can run here.")
    else:
        meaning = (
            "Native kernels are for Linux on x86-64; here PyTorch's own code runs, with the same numbers."
        )
        yield Finding("platform", Status.NOTE, found, meaning)
    encoding = locale.getpreferredencoding(do_setlocale=False)
    if encoding.lower().replace("-", "") == "utf8":
        yield Finding("locale", Status.OK, encoding, "Names and reports are printed as they are.")
    else:
        meaning = "Characters that it lacks are printed as escapes; files are read and written as UTF-8 all the same."
        yield Finding("locale", Status.NOTE, encoding, meaning, "export LC_ALL=C.UTF-8")


def check_processor() -> Iterator[Finding]:
    """Instruction sets."""
    from kernels_hub.calibration.processor import this_processor
    from kernels_hub.compiler.runtime.toolchain import machine_isas

    processor = this_processor()
    level = machine_isas()[0].name
    found = f"{processor.name}, {os.cpu_count() or 1} logical cores, code for {level}"
    if level == "baseline":
        meaning = "Without AVX2 native kernels have no vectors, so PyTorch's own code is as fast or faster."
        yield Finding("processor", Status.NOTE, found, meaning)
    else:
        meaning = "Native kernels use its vectors" + (
            "." if level == "avx512" else "; AVX-512 would be wider."
        )
        yield Finding("processor", Status.OK, found, meaning)


def check_torch() -> Iterator[Finding]:
    """PyTorch and Triton: whether they are there, in versions that are supported and belong together."""
    required = {one.name: one for one in map(Requirement, importlib.metadata.requires("kernels-hub") or ())}
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Finding(
            "torch", Status.PROBLEM, f"does not load: {str(error)[:200]}", "No model can run.", "pip install torch"
        )  # fmt: skip
        return
    version = str(torch.__version__)
    built = (
        f"for CUDA {torch.version.cuda}"
        if torch.version.cuda
        else "for ROCm"
        if torch.version.hip
        else "for CPU"
    )
    found = f"{version}, built {built}, {torch.get_num_threads()} threads"
    if required["torch"].specifier.contains(Version(version).base_version):
        yield Finding("torch", Status.OK, found, f"Supported ({required['torch'].specifier}).")
    else:
        step = f"pip install 'torch{required['torch'].specifier}'"
        yield Finding("torch", Status.PROBLEM, found, "Older than what is supported.", step)
    yield _triton(required["triton"])


def _triton(required: Requirement) -> Finding:
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        if required.marker is not None and not required.marker.evaluate():
            return Finding(
                "triton", Status.NOTE, "none for this platform", "Kernels for GPUs cannot run here."
            )
        return Finding(
            "triton", Status.NOTE, "not installed", "Kernels for GPUs cannot run.", "pip install triton"
        )
    wanted = [
        one for one in map(Requirement, importlib.metadata.requires("torch") or ())
        if one.name == "triton" and (one.marker is None or one.marker.evaluate({"extra": ""}))
    ]  # fmt: skip
    for one in (*wanted, required):
        if not one.specifier.contains(version, prereleases=True):
            whose = "torch" if one in wanted else "kernels-hub"
            return Finding(
                "triton", Status.PROBLEM, version, f"{whose} needs {one.specifier}; kernels for GPUs may fail.",
                f"pip install 'triton{one.specifier}'",
            )  # fmt: skip
    return Finding("triton", Status.OK, version, "Kernels for GPUs are compiled with it.")


def check_compiler() -> Iterator[Finding]:
    """The C++ compiler, tried on a file that uses what kernels use."""
    from kernels_hub.compiler.engines.bytecode_library import no_interpreter
    from kernels_hub.compiler.runtime.toolchain import FLAGS
    from kernels_hub.cxx_compiler import find_compiler

    wanted, compiler = os.environ.get("KERNELS_HUB_CXX"), find_compiler()
    layers = (
        "Bundled layers run prebuilt code, other layers for the CPU"
        if _prebuilt_level() is not None
        else "Layers for the CPU"
    )
    lost = f"{layers} run PyTorch's code, " + (
        "compile() and the mapping `compiled` run bytecode, at some nine tenths of the speed."
        if no_interpreter() is None
        else "the mapping `compiled` compiles nothing, and compile() takes engines that need no compiler."
    )
    install = (
        "install g++ (apt-get install g++, dnf install gcc-c++), or name a compiler: KERNELS_HUB_CXX=/path"
    )
    if compiler is None:
        if wanted == "none":
            yield Finding(
                "compiler", Status.NOTE, "turned off by KERNELS_HUB_CXX=none", lost, "unset KERNELS_HUB_CXX"
            )
        else:
            yield Finding("compiler", Status.NOTE, "no C++ compiler", lost, install)
        return
    if wanted and Path(compiler).name != Path(wanted).name:
        yield Finding(
            "KERNELS_HUB_CXX", Status.PROBLEM, f"{wanted} is not there", f"{compiler} is used instead.",
            "correct KERNELS_HUB_CXX, or unset it",
        )  # fmt: skip
    error = _tried(compiler, FLAGS)
    version = _first_line([compiler, "--version"])
    if error is None:
        meaning = "Native code is built in the background where it is first used, and kept."
        yield Finding("compiler", Status.OK, f"{compiler}: {version}", meaning)
    else:
        yield Finding("compiler", Status.PROBLEM, f"{compiler} fails: {error}", lost, install)


def _tried(compiler: str, flags: tuple[str, ...]) -> str | None:
    """Why a compiler cannot build what kernels need; None where it can."""
    with tempfile.TemporaryDirectory(prefix="kernels_hub-doctor-") as folder:
        source = Path(folder) / "tried.cpp"
        source.write_text(
            _PROGRAM if platform.machine() == "x86_64" else _PROGRAM.replace("#include <immintrin.h>", "")
        )
        command = [compiler, *flags, "-shared", str(source), "-o", str(Path(folder) / "tried.so")]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=CXX_TIMEOUT_S, check=False, errors="replace"
            )
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)[:200]
    if done.returncode == 0:
        return None
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return next(
        (line for line in said if "error" in line), said[0] if said else f"exit status {done.returncode}"
    )[:200]


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=False, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return "it does not say its version"
    return (done.stdout.splitlines() or ["it does not say its version"])[0][:120]


def check_folders() -> Iterator[Finding]:
    """The caches, and the folder of keys and the trust policy."""
    from kernels_hub.files import cache_folder
    from kernels_hub.hub.cache import hub_cache_folder
    from kernels_hub.trust.keys import config_folder

    places = (
        ("cache", cache_folder("native").parent, "KERNELS_HUB_CACHE", "Built code and measurements are kept",
         "are lost when the process ends, so that every process starts anew"),
        ("downloads", hub_cache_folder(), "KERNELS_CACHE",
         "Kernels from Hubs are kept", "cannot be downloaded"),
        ("settings", config_folder(), "XDG_CONFIG_HOME", "Keys and the trust policy are kept", "cannot be changed"),
    )  # fmt: skip
    for name, folder, variable, kept, lost in places:
        reason = _not_writable(folder)
        if reason is None:
            size = f"{_mebibytes(folder):.0f} MiB" if folder.is_dir() and name == "cache" else ""
            there = size or ("there" if folder.is_dir() else "made when it is needed")
            yield Finding(name, Status.OK, f"{folder} ({there})", f"{kept} here; {variable} moves it.")
        else:
            what = kept.partition(" are ")[0]
            yield Finding(
                name, Status.PROBLEM if name == "cache" else Status.NOTE, f"{folder}: {reason}", f"{what} {lost}.",
                f"export {variable}=/a/folder/that/can/be/written",
            )  # fmt: skip


def _not_writable(folder: Path) -> str | None:
    """Why nothing can be written there; None where something can."""
    there = next((parent for parent in (folder, *folder.parents) if parent.exists()), None)
    if there is None:
        return "no part of the path exists"
    if not there.is_dir():
        return f"{there} is not a folder"
    return None if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written to"


def _mebibytes(folder: Path) -> float:
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            try:
                total += (Path(parent) / name).lstat().st_size
            except OSError:  # removed meanwhile
                continue
    return total / (1 << 20)


def _prebuilt() -> ModuleType:
    """What finds prebuilt code: layers are checked as their variants, not under this name."""
    return importlib.import_module("kernels_hub.layers.native.prebuilt")


def _prebuilt_level() -> str | None:
    """The level of the prebuilt code that serves."""
    prebuilt = _prebuilt()
    folder = prebuilt.folder_of_objects()
    found = None if folder is None else prebuilt.examine(folder)[0]
    return None if found is None else str(found[0])


def check_prebuilt_code() -> Iterator[Finding]:
    """Native code that came along, and why what is better than what serves does not."""
    prebuilt = _prebuilt()
    setting, folder = os.environ.get("KERNELS_HUB_PREBUILT"), prebuilt.folder_of_objects()
    if folder is None:
        if setting:
            found = f"KERNELS_HUB_PREBUILT={setting}" + ("" if setting == "ignore" else " has no index.json")
            status = Status.NOTE if setting == "ignore" else Status.PROBLEM
            meaning = "Native code is built on this machine."
            yield Finding("prebuilt code", status, found, meaning, "unset KERNELS_HUB_PREBUILT")
        else:
            meaning = "Native code is built on this machine, where there is a compiler."
            yield Finding("prebuilt code", Status.OK, "none in this installation", meaning)
        return
    serving, reasons = prebuilt.examine(folder)
    told = "; ".join(one for one in reasons if "lacks an instruction set" not in one)
    install = "pip install --force-reinstall --no-deps kernels-hub" if told else ""
    if serving is None:
        status = Status.PROBLEM if told else Status.NOTE
        meaning = "Native code is built on this machine, where there is a compiler."
        yield Finding("prebuilt code", status, "; ".join(reasons) or "no objects", meaning, install)
        return
    found = f"for {serving[0]}, in {folder}" + (f"; {told}" if told else "")
    meaning = "Bundled layers run it at once; nothing is compiled for them."
    yield Finding("prebuilt code", Status.PROBLEM if told else Status.OK, found, meaning, install)


def check_native_code() -> Iterator[Finding]:
    """Which layers have native code that is ready, and which wait for the compiler."""
    from kernels_hub.cxx_compiler import find_compiler
    from kernels_hub.files import cache_folder
    from kernels_hub.repository.bundled import bundled_folder

    layers = sorted({path.parent.parent.name for path in bundled_folder().glob("*/cpu/*.cpp")})
    built = {
        re.sub(r"-[0-9a-f]{32}$", "", path.stem)
        for path in (cache_folder("native").glob("*.so") if cache_folder("native").is_dir() else ())
    }
    found = f"{len(built)} libraries built on this machine, for {len(layers)} layer repositories with C++"
    if built:
        yield Finding("native code", Status.OK, found, "Code that is built already loads at once.")
    elif find_compiler() is None:
        meaning = "There is no compiler, so what is not prebuilt runs PyTorch's code."
        yield Finding("native code", Status.NOTE, found, meaning)
    else:
        yield Finding("native code", Status.OK, found, "It is built beside the first calls, in seconds.")


def check_gpus() -> Iterator[Finding]:
    """GPUs that PyTorch sees."""
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        found = "none" + (
            ", although PyTorch is built for one" if built else "; PyTorch is built for the CPU"
        )
        step = "KERNELS_HUB_BACKEND=cpu loads the CPU's variants where no device is named" if built else ""
        yield Finding("GPU", Status.OK, found, "Layers run on the CPU.", step)
        return
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        found = f"{torch.cuda.get_device_name(index)}, capability {major}.{minor}"
        meaning = "The Triton kernels compile for it. None of them has been measured on a GPU yet."
        step = "kernelize(…, verify=inputs) compares them with the originals; please report what you find"
        yield Finding("GPU", Status.NOTE, found, meaning, step)


def check_calibration() -> Iterator[Finding]:
    """What is known of the kernels' gains on this processor."""
    from kernels_hub.calibration import database

    machine, setting = database.this_machine(), database.setting()
    if setting == database.IGNORE:
        meaning = "Every kernel of the mapping runs, whatever it gains."
        yield Finding("calibration", Status.NOTE, "KERNELS_HUB_CALIBRATION=ignore", meaning, "unset it")
        return
    if setting not in ("", database.OFF):
        table = database.read(Path(setting).expanduser(), None)
        found = f"{setting}: {sum(1 for _ in table.rows())} measurements"
        yield Finding("calibration", Status.OK, found, "This file alone decides where kernels run.")
        return
    own = sum(1 for _ in database.load(machine).rows())
    shipped = sum(1 for _ in database.shipped(machine).rows())
    found = f"{own} measurements of this machine, {shipped} shipped for {machine.processor}, {machine.threads} threads"
    if own + shipped:
        yield Finding(
            "calibration", Status.OK, found, "Measured kernels run where they are known to be faster."
        )
    else:
        meaning = "Where a mapping asks for measured gains the originals run, until something was measured beside them."
        yield Finding("calibration", Status.NOTE, found, meaning, "kernels-hub calibrate")


def check_mapping() -> Iterator[Finding]:
    """The mapping that applies."""
    if os.environ.get("DISABLE_KERNEL_MAPPING", "0") not in ("", "0"):
        yield Finding(
            "mapping", Status.NOTE, "DISABLE_KERNEL_MAPPING is set", "Every original forward stays.", "unset it"
        )  # fmt: skip
    else:
        name = os.environ.get("KERNELS_HUB_DEFAULT_MAPPING") or "default"
        if name == "none":
            meaning = "No kernel is used unless your code registers a mapping."
            yield Finding("mapping", Status.NOTE, "none", meaning, "unset KERNELS_HUB_DEFAULT_MAPPING")
        else:
            from kernels_hub import load_kernel_mapping

            entries = len(load_kernel_mapping(name).entries)
            meaning = "It applies where your code registers no other."
            yield Finding("mapping", Status.OK, f"{name}: kernels for {entries} layers", meaning)


def check_hub() -> Iterator[Finding]:
    """The Hub, and whether the network is used."""
    from kernels_hub.hub.connection import Connection

    connection = Connection()
    endpoint = connection.endpoint
    if connection.is_offline:
        meaning = "What was downloaded, or came in a bundle, is used; nothing else is looked for."
        yield Finding("Hub", Status.OK, f"{endpoint}, HF_HUB_OFFLINE is set", meaning)
    else:
        meaning = "Asked when a mapping names a kernel of a Hub; bundled kernels need no network. Not contacted now."
        yield Finding("Hub", Status.OK, endpoint, meaning)
        if mirrors := [one.address for one in connection.endpoints if not one.is_origin]:
            meaning = "Asked where the Hub does not answer, or before it, as KERNELS_HUB_MIRRORS says."
            yield Finding("Mirrors", Status.OK, ", ".join(mirrors), meaning)


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_platform, check_processor, check_torch, check_gpus, check_compiler, check_folders, check_prebuilt_code,
    check_native_code, check_calibration, check_mapping, check_hub,
)  # fmt: skip


def examine(checks: tuple[Callable[[], Iterator[Finding]], ...] = CHECKS) -> list[Finding]:
    """All findings, in the order in which they are printed."""
    findings: list[Finding] = []
    for check in checks:
        name = check.__name__.removeprefix("check_").replace("_", " ")
        try:
            findings += check()
        except Exception as error:  # noqa: BLE001 - what stops one check is a finding, and no end of the others
            said = f"{type(error).__name__}: {str(error)[:300]}"
            step = f"{shlex.join(['kernels-hub', 'doctor'])} --json, and a report of it"
            findings.append(Finding(name, Status.PROBLEM, said, "This could not be found out.", step))
    return findings
