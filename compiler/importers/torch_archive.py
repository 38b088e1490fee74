"""A file of `torch.export.save` (.pt2) as a container: its records, and the tensors in them, mapped and not copied.

Nothing is unpickled. What only a pickle can hold (tensor subclasses, custom objects, weights as older releases of
PyTorch store them) is refused, and so is compiled code.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from kernels_hub.compiler.errors import ImportFailure

if TYPE_CHECKING:
    import torch

_LOCAL_HEADER = struct.Struct("<4s22xHH")
_ZIP = b"PK\3\4"
_MOST_TEXT = 1 << 28
"""Bytes of a record of JSON, which is parsed in memory."""


def is_torch_archive(path: Path) -> bool:
    """Whether a file is named .pt2, or is a zip file, as those are."""
    if path.suffix == ".pt2":
        return True
    if path.suffix == ".onnx" or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_ZIP)) == _ZIP


def if_trusted(path: Path) -> str:
    """What to do of a file that is refused as reading it could run code."""
    return f"if you trust the file, load it yourself: compile(torch.export.load({str(path)!r}))"


class TorchArchive:
    """The records of one file. Raises ImportFailure for what is no such file, FileNotFoundError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file, zipfile.ZipFile(file) as archive:
                infos = archive.infolist()
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            # NotImplementedError is what zipfile raises for a later format of zip.
            raise ImportFailure(f"{path} is no file of torch.export.save, or is cut off: {error}") from error
        names = [info.filename for info in infos]
        if len(set(names)) < len(names):
            raise ImportFailure(f"{path} is damaged: it has records of the same name")
        marks = [name for name in names if name.endswith("/archive_format")]
        if len(marks) != 1:
            raise ImportFailure(f"{path} {_kind_of(names)}")
        root = marks[0].removesuffix("archive_format")
        self._infos = {
            info.filename.removeprefix(root): info for info in infos if info.filename.startswith(root)
        }
        if any(name.startswith("data/aotinductor/") for name in self._infos) and not self.names("models/"):
            raise ImportFailure(
                f"{path} holds code that AOTInductor compiled, and no program; give what torch.export.save wrote"
            )

    def names(self, folder: str) -> list[str]:
        """The records of a folder ("models/"), without its name."""
        return [name.removeprefix(folder) for name in self._infos if name.startswith(folder)]

    def place(self, name: str) -> tuple[int, int]:
        """Where a record's bytes begin in the file, and how many there are."""
        info = self._infos.get(name)
        if info is None:
            raise ImportFailure(f"{self.path} is damaged: it has no {name}")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise ImportFailure(f"{self.path}: {name} is compressed or encrypted, which PyTorch never writes")
        if info.header_offset + _LOCAL_HEADER.size > len(self._bytes):
            raise ImportFailure(f"{self.path} is cut off at {name}; copy it again")
        sign, of_name, of_extra = _LOCAL_HEADER.unpack_from(self._bytes, info.header_offset)
        begin = info.header_offset + _LOCAL_HEADER.size + of_name + of_extra
        if sign != _ZIP or begin + info.file_size > len(self._bytes):
            raise ImportFailure(f"{self.path} is cut off at {name}; copy it again")
        return begin, info.file_size

    def document(self, name: str) -> dict[str, object]:
        """A record of JSON."""
        begin, size = self.place(name)
        if size > _MOST_TEXT:
            raise ImportFailure(f"{self.path}: {name} has {size:,} bytes; at most {_MOST_TEXT:,} are read")
        try:
            found = json.loads(self._bytes[begin : begin + size])
        except (ValueError, RecursionError) as error:
            raise ImportFailure(f"{self.path} is damaged: {name} is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise ImportFailure(f"{self.path} is damaged: {name} is no JSON object")
        return found

    def tensors(self, folder: str, config: str) -> dict[str, torch.Tensor]:
        """Name -> tensor, of those that a record lists; those of the same record share memory."""
        listed = self.document(config).get("config")
        if not isinstance(listed, dict):
            raise ImportFailure(f"{self.path} is damaged: {config} lists nothing")
        known: dict[str, torch.Tensor] = {}
        found = {}
        for name, payload in listed.items():
            try:
                found[name] = self._tensor(folder, name, payload, known)
            except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
                raise ImportFailure(
                    f"{self.path} is damaged: {name!r} of {config}: {type(error).__name__}: {error}"
                ) from error
        return found

    def _tensor(
        self, folder: str, name: str, payload: object, known: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        import torch
        from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_DTYPE

        if not isinstance(payload, dict):
            raise TypeError("it is described by no object")
        record, meta = payload["path_name"], payload["tensor_meta"]
        if payload["use_pickle"] or meta is None or not record.startswith(("weight_", "tensor_")):
            raise ImportFailure(
                f"{self.path}: {name!r} is a pickled object, and unpickling can run any code; {if_trusted(self.path)}"
            )
        dtype = _SERIALIZE_TO_TORCH_DTYPE[meta["dtype"]]
        sizes, strides = ([one["as_int"] for one in meta[key]] for key in ("sizes", "strides"))
        if record not in known:
            begin, size = self.place(folder + record)
            memory = (
                torch.frombuffer(self._bytes, dtype=torch.uint8, count=size, offset=begin) if size else None
            )
            known[record] = torch.empty(0, dtype=torch.uint8) if memory is None else memory
        memory = known[record]
        if memory.numel() % dtype.itemsize:
            raise ValueError(f"{memory.numel()} bytes are no whole number of {dtype}")
        if not memory.numel():
            if math.prod(sizes):
                raise ValueError(f"no bytes for {math.prod(sizes)} elements")
            tensor = torch.empty(sizes, dtype=dtype)
        else:
            aligned = memory if memory.data_ptr() % dtype.itemsize == 0 else memory.clone()
            known[record] = aligned
            tensor = aligned.view(dtype).as_strided(sizes, strides, meta["storage_offset"]["as_int"])
        trained = bool(meta["requires_grad"])
        return torch.nn.Parameter(tensor, requires_grad=trained) if payload["is_param"] else tensor


def _kind_of(names: list[str]) -> str:
    """What a zip file is that is no archive of torch.export.save, and what to do."""
    if "serialized_exported_program.json" in names:
        return (
            "is of torch.export.save before PyTorch 2.8, which stored weights as a pickle; load it with "
            "torch.export.load and save it again"
        )
    if any(name.endswith("/data.pkl") for name in names):
        return (
            "is of torch.save or torch.jit.save, a pickle; load it yourself, and compile (module, arguments)"
        )
    return "is a zip file, but none that torch.export.save wrote"
