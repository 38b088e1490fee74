"""`emit_layer`: a module, one layer of a model, or an ONNX file becomes a layer repository in source form.

    emit_layer((module, (x,)), layer_name="LlamaMLP", out=Path("llama-mlp"), dynamic_shapes={"x": {0: Dim("batch")}})
    emit_layer("encoder.onnx", layer_name="Encoder", out=Path("encoder"))

What is written runs under this library and under Hugging Face's `kernels` client with torch alone: `kernels-hub build`
and `publish` take it like any other layer repository. Its forward has the signature of the module's, reads the weights
of the module that it replaces whenever they change, and hands every call that it was not compiled for to the
original forward.
"""

from __future__ import annotations

import keyword
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from kernels_hub.compiler.codegen import toolchain
from kernels_hub.compiler.codegen.cpp import Program, generate
from kernels_hub.compiler.emitting import package
from kernels_hub.compiler.emitting.arrays import write_tensors
from kernels_hub.compiler.emitting.card import write_card
from kernels_hub.compiler.emitting.check import Checked, check_emitted
from kernels_hub.compiler.emitting.recorded import recorded
from kernels_hub.compiler.emitting.runtime.parts import Module
from kernels_hub.compiler.emitting.source import (
    Example,
    Source,
    evaluating,
    from_module,
    from_onnx,
    layer_of,
)
from kernels_hub.compiler.emitting.table import Parts, write_table
from kernels_hub.compiler.errors import BuildError, CompilerError, EngineError
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.rewrite.fold import FoldParameters
from kernels_hub.compiler.rewrite.pipeline import PIPELINE, rewrite
from kernels_hub.compiler.schedule.schedule import schedule
from kernels_hub.compiler.schedule.units import refused
from kernels_hub.repository.build import KERNEL_NAME, NAME_RULE


@dataclass(frozen=True)
class Emitted:
    """What was written, and how it compares. `graph`: after rewriting. `files`: relative to `path`."""

    path: Path
    name: str
    layer_name: str
    graph: Graph
    program: Program
    checked: Checked
    files: tuple[str, ...]


def emit_layer(
    source: Any,
    *,
    layer_name: str,
    out: str | os.PathLike[str],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    submodule: str | None = None,
    dims: Mapping[str, Any] | None = None,
    name: str | None = None,
    version: str = "0.1.0",
    benchmark: bool = True,
    command: str | None = None,
) -> Emitted:
    """Compile a layer for the CPU and write it as a repository in source form.

    source: an nn.Module with `args`, (module, args) or (module, args, kwargs); or the path of an ONNX file.
    out: a folder that is new, empty, or was emitted before. dynamic_shapes: as torch.export takes them. submodule:
    compile this layer of the module, with the arguments that it gets when the module runs. dims: sizes of an ONNX
    file's named axes. name: of the kernel, by default made of layer_name. benchmark: time it against the original.
    command: how to make it again, for the card.

    Every case of the card's table is checked against the module and the oracle before this returns. Raises
    ImportFailure for what cannot be imported and EngineError for ops that no kernel computes, each with all of
    them; BuildError without a C++ compiler; EngineError where results differ. `out` is as it was, then.
    """
    folder = Path(out)
    if not layer_name.isidentifier() or keyword.iskeyword(layer_name):
        raise CompilerError(f"{layer_name!r} cannot be a layer's name: it is to be the name of a class")
    _check_out(folder)
    kernel = name or package.kernel_name(layer_name)
    if KERNEL_NAME.fullmatch(kernel) is None:
        raise CompilerError(f"{kernel!r} cannot be a kernel's name, give another with name=: {NAME_RULE}")
    if toolchain.find_compiler() is None:
        raise BuildError(
            "no C++ compiler found to check what is emitted with; set KERNELS_HUB_CXX or install g++"
        )
    found, original = _source(source, args, kwargs, dynamic_shapes, submodule, dims, layer_name)
    graph = rewrite(found.graph, tuple(one for one in PIPELINE if not isinstance(one, FoldParameters))).graph
    _check_ops(graph)
    scheduled = schedule(graph)
    program = generate(scheduled)
    lowered = replace(found, graph=graph)
    example = found.example
    modules: tuple[Module, ...] = ()
    if example is not None:
        with evaluating(example.module):
            modules = recorded(example)
    parts = Parts(layer_name, lowered, scheduled, program, modules)
    summary = (
        f"{original}, compiled to {len(program.steps)} C++ kernel{'s' if len(program.steps) != 1 else ''}"
    )
    with _replacing(folder):
        files = _write(folder, parts, kernel, version, summary)
        with evaluating(example.module if example is not None else nn.Module()):
            checked = check_emitted(folder, layer_name, found, benchmark=benchmark)
        card = write_card(parts, found, checked, kernel, version, summary, command)
        (folder / "README.md").write_text(card, encoding="utf-8")
    return Emitted(folder, kernel, layer_name, graph, program, checked, (*files, "README.md"))


@contextmanager
def _replacing(folder: Path) -> Iterator[None]:
    """What was emitted there before is set aside, and comes back where the new one fails."""
    was_there = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-former-") as former:
        for one in _OWNED:
            if (folder / one).exists():
                (folder / one).rename(Path(former) / one)
        try:
            yield
        except BaseException:
            for one in _OWNED:
                shutil.rmtree(folder / one) if (folder / one).is_dir() else (folder / one).unlink(
                    missing_ok=True
                )
            for kept in Path(former).iterdir():
                kept.rename(folder / kept.name)
            if not was_there:
                folder.rmdir()
            raise


_OWNED = ("package", "call", "cpu", "kernel.toml", "README.md", "build")
"""What is written into a repository, and what was built of it, which clients would take for the new one."""


def _source(
    source: Any, args: Any, kwargs: Any, dynamic_shapes: Any, submodule: str | None, dims: Any, name: str
) -> tuple[Source, str]:
    """The source, and what it is in words."""
    if isinstance(source, tuple) and source and isinstance(source[0], nn.Module):
        source, args, kwargs = (*source, *(None, None))[:3] if args is None else (source[0], args, kwargs)
    if isinstance(source, nn.Module):
        if args is None and kwargs is None:
            raise CompilerError(f"{type(source).__name__} needs example arguments: give (module, args)")
        example = Example(source, tuple(args or ()), dict(kwargs or {}), dynamic_shapes)
        with evaluating(source):
            what = type(source).__qualname__
            if submodule is not None:
                example = layer_of(example, submodule)
                what = f"{type(example.module).__qualname__} ({submodule} of {what})"
            return from_module(example, name), what
    if isinstance(source, (str, os.PathLike)):
        if submodule is not None:
            raise CompilerError(f"{source} is an ONNX file, which has no module {submodule!r}")
        return from_onnx(Path(source), name, dims), f"The ONNX file {Path(source).name}"
    raise CompilerError(f"a layer is made of a module with arguments, or of an ONNX file, not of {source!r}")


def _check_ops(graph: Graph) -> None:
    if found := refused(graph):
        lines = [
            f"{value.op_name}: {reason}; from {value.node.origin or 'the graph'}"
            for value, reason in found.items()
        ]
        count = "1 value" if len(lines) == 1 else f"{len(lines)} values"
        raise EngineError(
            f"graph {graph.name} has {count} that no C++ kernel computes:\n  " + "\n  ".join(lines)
        )


def _check_out(folder: Path) -> None:
    if not folder.exists():
        return
    manifest = folder / "kernel.toml"
    if folder.is_dir() and (not any(folder.iterdir()) or (
        manifest.is_file() and manifest.read_text(encoding="utf-8").startswith(package.MARK)
    )):  # fmt: skip
        return
    raise CompilerError(f"{folder} holds something else than an emitted layer; give a new folder")


def _write(folder: Path, parts: Parts, kernel: str, version: str, summary: str) -> tuple[str, ...]:
    """Write everything but the card; returns what was written."""
    standalone = parts.source.example is None
    layer, source = parts.layer, parts.source
    init = (package.INIT_STANDALONE if standalone else package.INIT).replace(
        "{summary}", package.in_docstring(summary)
    )
    texts = {
        "kernel.toml": package.manifest(
            kernel, version, layer, source, summary, ["load"] if standalone else []
        ),
        "package/__init__.py": init,
        "package/layers.py": package.layers_file(layer, source, summary, standalone=standalone),
        "cpu/program.cpp": parts.program.source,
        "cpu/program.py": package.PROGRAM_STANDALONE if standalone else package.PROGRAM,
        "cpu/table.py": write_table(parts),
        "cpu/toolchain.py": package.toolchain_file(),
        **({"package/model.py": package.model_file(layer, source)} if standalone else {}),
        **{
            f"{inside}/{one}": (package.RUNTIME / one).read_text(encoding="utf-8")
            for inside, names in package.COPIED.items()
            for one in names
        },
    }
    for one in sorted((*toolchain.RUNTIME.glob("*.h"), *toolchain.RUNTIME.glob("*.cpp"))):
        texts[f"cpu/runtime/{one.name}"] = one.read_text(encoding="utf-8")
    for inside, text in texts.items():
        path = folder / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    files = list(texts)
    if constants := parts.constants():
        write_tensors(
            folder / "cpu" / "constants.safetensors", {one.name: array for one, array in constants.items()}
        )
        files.append("cpu/constants.safetensors")
    if standalone:
        arrays = {name: source.arrays[name] for name in source.graph.parameters}
        write_tensors(folder / "package" / "weights.safetensors", arrays)
        files.append("package/weights.safetensors")
    return tuple(files)
