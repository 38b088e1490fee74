"""`torch.mps.compile_shader` on the CPU: the same text, compiled with the shim's `metal_stdlib` in place of Metal's."""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kernels_hub.compiler.runtime.toolchain import find_compiler

SHIM = Path(__file__).parent / "shim"
_KERNEL = re.compile(r"^kernel void (\w+)\((.*)\) \{$", re.MULTILINE)
_PARAMETER = re.compile(
    r"(?:device (?P<pointer>[\w ]+)\*|constant (?P<number>\w+)&) \w+ \[\[buffer\((?P<at>\d+)\)\]\]"
    r"|uint \w+ \[\[thread_position_in_grid\]\]"
)


class ShaderLibrary:
    """Kernels by name: library.name(*tensors and numbers, threads=count)."""

    def __init__(self, source: str) -> None:
        compiler = find_compiler()
        assert compiler is not None
        kernels = {name: parameters.split(", ") for name, parameters in _KERNEL.findall(source)}
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder, "kernels.cpp")
            text.write_text("\n".join([source, *(_host(*one) for one in kernels.items())]))
            built = Path(folder, "kernels.so")
            command = [
                str(getattr(compiler, "path", compiler)), "-std=c++14", "-O1", "-fwrapv", "-ffp-contract=off", "-shared",
                "-fPIC", "-Wno-attributes", f"-I{SHIM}", "-o", str(built), str(text),
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[:4000]
            self._library = ctypes.CDLL(str(built))
        self._kernels = kernels

    def __getattr__(self, name: str) -> Callable[..., None]:
        parameters = self._kernels[name]

        def launch(*arguments: Any, threads: int) -> None:
            assert len(arguments) == len(parameters) - 1, f"{name} takes {parameters}"
            values: list[Any] = []
            for argument, parameter in zip(arguments, parameters, strict=False):
                if isinstance(argument, torch.Tensor):
                    assert "device" in parameter and argument.is_contiguous()
                    values.append(ctypes.c_void_p(argument.data_ptr()))
                else:
                    assert "constant int64_t&" in parameter
                    values.append(ctypes.cast(ctypes.pointer(ctypes.c_int64(argument)), ctypes.c_void_p))
            pointers = (ctypes.c_void_p * len(values))(*values)
            getattr(self._library, f"host_{name}")(pointers, ctypes.c_uint64(threads))

        return launch


def _host(name: str, parameters: list[str]) -> str:
    """A function that runs all threads of a kernel."""
    arguments = []
    for place, parameter in enumerate(parameters):
        found = _PARAMETER.fullmatch(parameter)
        assert found, f"{parameter!r} is no parameter of a Metal kernel"
        if found["at"] is None:
            assert place == len(parameters) - 1
            arguments.append("static_cast<uint>(thread)")
            continue
        assert int(found["at"]) == place < 31, "Metal has 31 places for buffers"
        kind = f"{found['pointer']}*" if found["pointer"] else f"const {found['number']}*"
        argument = f"static_cast<{kind}>(arguments[{place}])"
        arguments.append(argument if found["pointer"] else f"*{argument}")
    return (
        f'extern "C" void host_{name}(void* const* arguments, uint64_t threads) {{\n'
        f"  for (uint64_t thread = 0; thread < threads; ++thread) {name}({', '.join(arguments)});\n}}"
    )
