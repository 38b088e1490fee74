"""Arrays to a safetensors file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.types import Array

_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint16": "U16",
    "uint32": "U32", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip


def write_tensors(path: Path, arrays: Mapping[str, Array | Callable[[], Array]]) -> None:
    """Write arrays under their names; equal arrays give equal bytes. Raises CompilerError for a dtype it lacks."""
    header: dict[str, object] = {}
    chunks = []
    start = 0
    for name, held in arrays.items():
        array = np.asarray(held() if callable(held) else held)
        dtype = types.dtype(array.dtype).name
        if dtype not in _NAMES:
            raise CompilerError(f"{name!r} is {dtype}, which a safetensors file does not hold")
        data = array.tobytes()
        header[name] = {
            "dtype": _NAMES[dtype],
            "shape": list(array.shape),
            "data_offsets": [start, start + len(data)],
        }
        start += len(data)
        chunks.append(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(chunks)
