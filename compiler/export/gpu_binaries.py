"""GPU binaries of an exported layer: its kernels compiled for architectures that need not be here.

What a call would launch is found by running the program's host functions with a launcher that takes notes, for several
sizes; each kernel is compiled for the sizes' own alignment and, where sizes are symbolic, for any. A kernel that would
spill registers gets other knobs, which go to the table; where none helps, it is left to Triton at run time.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from kernels_hub.compiler.errors import BuildError, CompilerError
from kernels_hub.compiler.export.load_emitted import load_emitted
from kernels_hub.compiler.export.resources import SHARED_LIMIT, Resources, read_resources
from kernels_hub.compiler.ir.dims import dim_symbols
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.runtime.arguments import dtype_of
from kernels_hub.compiler.runtime.binaries import FOLDER, INDEX, Binary, parameter
from kernels_hub.compiler.runtime.launcher import Launcher
from kernels_hub.compiler.runtime.triton_versions import scratch_bytes

SOURCES = "triton"
"""The folder of a repository in source form that holds them."""

_LARGE = 1024
_MOST_WARPS = 16
_MOST_CHANGES = 4
"""Times that a kernel gets other knobs, each for one size."""

Knobs = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Launched:
    """One launch: the kernel, what its arguments are, and its constants."""

    kernel: Any
    parameters: tuple[str, ...]
    constants: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The kernel's."""
        return str(self.kernel.fn.__name__)

    def key(self) -> tuple[Any, ...]:
        """Equal for launches of one binary."""
        return (
            self.name,
            self.parameters,
            tuple(sorted((name, str(one)) for name, one in self.constants.items())),
        )

    def general(self) -> Launched:
        """For numbers of any size's alignment."""
        return Launched(self.kernel, tuple(_general(one) for one in self.parameters), self.constants)


@dataclass(frozen=True)
class Compiled:
    """A row of the card's table; binary: None where the kernel is left to Triton at run time, for this reason."""

    program: str
    arch: str
    kernel: str
    constants: Mapping[str, Any]
    resources: Resources
    nbytes: int
    binary: Binary | None
    reason: str = ""


def check_architectures(archs: Sequence[str]) -> None:
    """Raise CompilerError for one that nothing can be compiled for here, and without Triton's compiler."""
    for arch in archs:
        if arch not in SHARED_LIMIT:
            raise CompilerError(
                f"GPU binaries cannot be made for {arch!r}; they can be for {', '.join(SHARED_LIMIT)}"
            )
    if importlib.util.find_spec("triton") is None:
        raise BuildError("GPU binaries are made by Triton, which is not installed")
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise BuildError("GPU binaries cannot be made under TRITON_INTERPRET=1; unset it")


def sizes_of(graph: Graph, cases: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
    """Sizes to compile for: those of the card's cases, and large ones."""
    symbols = dim_symbols(dim for value in graph.inputs.values() for dim in value.shape)
    large = {
        symbol.name: _LARGE if symbol.max is None else max(symbol.min, min(_LARGE, symbol.max))
        for symbol in symbols
    }
    found = [dict(case) for case in (*cases, large)]
    return [one for index, one in enumerate(found) if one not in found[:index]]


def compile_ahead(
    folder: Path, archs: Sequence[str], cases: Mapping[str, Sequence[Mapping[str, int]]], knobs: Knobs
) -> list[Compiled]:
    """Compile the kernels of an emitted repository and write them, and their index.

    cases: of each program (its file), sizes to compile for. knobs: the table; gets those that keep kernels from
    spilling. Raises BuildError where a kernel does not compile.
    """
    package = load_emitted(folder, "cuda").__name__
    rows: list[Compiled] = []
    index: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for program, sizes in cases.items():
        stem = Path(program).stem
        module = importlib.import_module(f"{package}.{stem}")
        table = importlib.import_module(f"{package}.{stem.replace('kernels', 'table', 1)}").TABLE
        for arch in archs:
            found = _for_arch(folder, module, table, program, arch, sizes, knobs)
            rows += found
            index.setdefault(program, {})[arch] = [
                asdict(one.binary) for one in found if one.binary is not None
            ]
    target = folder / SOURCES / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"programs": index}, indent=1) + "\n"
    (target / INDEX).write_text(text, encoding="utf-8", newline="\n")
    return rows


def _for_arch(
    folder: Path,
    module: Any,
    table: object,
    program: str,
    arch: str,
    sizes: Sequence[Mapping[str, int]],
    knobs: Knobs,
) -> list[Compiled]:
    tuned: dict[str, dict[str, int]] = knobs[arch].setdefault("kernels", {})
    refused: dict[str, str] = {}
    changed: dict[str, int] = {}
    while True:
        found: list[Compiled] = []
        again = False
        for launch in _launches(module, table, sizes, knobs[arch]):
            taken = _compiled(launch, arch)
            problem = _problem(taken[0], arch)
            if problem and launch.name not in refused:
                tries = changed[launch.name] = changed.get(launch.name, 0) + 1
                change = (
                    _other_knobs(launch, arch, tuned.get(launch.name, {})) if tries <= _MOST_CHANGES else None
                )
                if change is not None:
                    tuned[launch.name] = change
                    again = True
                    break
                refused[launch.name] = problem
            found.append(_row(folder, program, arch, launch, *taken, problem))
        if not again:
            return found


def _launches(
    module: Any, table: Any, sizes: Sequence[Mapping[str, int]], knobs: Mapping[str, Any]
) -> list[Launched]:
    """What is launched for any of these sizes, each once."""
    found: dict[tuple[Any, ...], Launched] = {}
    on = _Notes(knobs, found)
    tensors = [torch.empty(0, dtype=dtype_of(name), device="meta") for name in table.dtypes]
    tensors.append(torch.empty(1, dtype=torch.int32, device="meta"))
    for step in module.PREPARE:
        step(tensors, [1] * len(table.symbols), on)
    for size in sizes:
        for step in module.RUN:
            step(tensors, [size[name] for name in table.symbols], on)
    return list(found.values())


class _Notes(Launcher):
    """A launcher that starts nothing."""

    def __init__(self, knobs: Mapping[str, object], found: dict[tuple[Any, ...], Launched]) -> None:
        super().__init__(knobs)
        self.found = found

    def launch(
        self, kernel: Any, grid: Sequence[int], arguments: Sequence[object], **constants: object
    ) -> None:
        """See `Launcher`."""
        del grid
        one = Launched(kernel, tuple(map(parameter, arguments)), constants)
        for each in (one, one.general()):
            self.found.setdefault(each.key(), each)


def _general(kind: str) -> str:
    return kind.removesuffix("/16")


def _compiled(launched: Launched, arch: str) -> tuple[Resources, Any]:
    """Compile it, as the JIT would at this launch."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    target = (
        GPUTarget("hip", arch, 64)
        if arch.startswith("gfx")
        else GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    )
    given = dict(launched.constants)
    options: dict[str, Any] = {"enable_fp_fusion": True}
    options.update({name: given.pop(name) for name in ("num_warps", "num_stages") if name in given})
    names = launched.kernel.arg_names
    kinds: dict[str, str] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for index, (name, kind) in enumerate(zip(names, launched.parameters, strict=False)):
        kinds[name] = kind.partition("/")[0]
        if kind.startswith("*") or kind.endswith("/16"):
            attributes[index,] = [["tt.divisibility", 16]]
    types = {name: kinds.get(name, "constexpr") for name in names}
    source = ASTSource(launched.kernel, types, constexprs=given, attrs=attributes)
    try:
        made = triton.compile(source, target=target, options=options)
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise BuildError(
            f"kernel {launched.name} does not compile for {arch}: {lines[0] if lines else error!r}"
        ) from error
    return read_resources(made), made


def _problem(taken: Resources, arch: str) -> str:
    if taken.spills:
        return f"it spills registers ({taken.spills})"
    if taken.shared > SHARED_LIMIT[arch]:
        return f"it takes {taken.shared} bytes of shared memory, {arch} has {SHARED_LIMIT[arch]}"
    return ""


def _other_knobs(launched: Launched, arch: str, tuned: Mapping[str, int]) -> dict[str, int] | None:
    """Knobs with which it takes less of the hardware than its limits."""
    for change in _changes(launched.constants):
        other = Launched(launched.kernel, launched.parameters, {**launched.constants, **change})
        with contextlib.suppress(BuildError):
            if not _problem(_compiled(other, arch)[0], arch):
                return {**tuned, **change}
    return None


def _changes(constants: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    """More warps, fewer steps ahead, smaller tiles: the least change first."""
    warps, rows = constants["num_warps"], constants.get("ROWS", 0)
    least = 16 if "DEPTH" in constants or "WIDTH" in constants else 1
    if warps * 2 <= _MOST_WARPS:
        yield {"num_warps": warps * 2}
    if constants.get("num_stages", 1) > 1:
        yield {"num_stages": 1}
    while rows // 2 >= least:
        rows //= 2
        yield {"ROWS": rows}
        if warps * 2 <= _MOST_WARPS:
            yield {"ROWS": rows, "num_warps": warps * 2}


def _row(
    folder: Path, program: str, arch: str, launched: Launched, taken: Resources, made: Any, problem: str
) -> Compiled:
    data: bytes = made.asm["hsaco" if arch.startswith("gfx") else "cubin"]
    meta = made.metadata
    constants = {
        name: value if isinstance(value, (int, float, bool, str)) else str(value)
        for name, value in launched.constants.items()
    }
    trailing = taken.parameters - len(launched.parameters)
    if not problem and (scratch_bytes(meta) or meta.num_ctas != 1 or trailing < 0):
        problem = "it needs more of a launch than arguments"
    if problem:
        return Compiled(program, arch, launched.name, constants, taken, len(data), None, problem)
    digest = hashlib.sha256(data).hexdigest()
    file = f"{arch}/{launched.name}-{digest[:12]}.{'hsaco' if arch.startswith('gfx') else 'cubin'}"
    path = folder / SOURCES / FOLDER / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    binary = Binary(
        launched.name,
        meta.name,
        file,
        digest,
        constants,
        launched.parameters,
        meta.shared,
        meta.num_warps,
        trailing,
    )
    return Compiled(program, arch, launched.name, constants, taken, len(data), binary)
