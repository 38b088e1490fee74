"""Tensors in a safetensors file: 8 bytes of length, a JSON header, the data. Read without a package for it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch

from ...files import read_shipped

_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64, "F16": torch.float16,
    "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Name -> tensor, each in memory of its own. Raises ValueError for a file that is cut or of another form."""
    data = read_shipped(path)
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
        tensors = {}
        for name, row in header.items():
            if name == "__metadata__":
                continue
            start, stop = (8 + length + offset for offset in row["data_offsets"])
            dtype = _DTYPES[row["dtype"]]
            count = math.prod(row["shape"])
            tensor = torch.empty(row["shape"], dtype=dtype)
            if count:
                raw = torch.frombuffer(bytearray(data[start:stop]), dtype=torch.uint8)
                tensor.view(-1).view(torch.uint8).copy_(raw)
            tensors[name] = tensor
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path} is no whole safetensors file: {error}; fetch it again") from error
    return tensors
