"""Makes a wheel with native code of the pure one: files are added, and what metadata say of them.

Every file has the same time and mode, and they stand in the order of their names, so that the same files give the same
bytes.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath

from tools.wheels.native import INDEX

PLACE = "kernels_hub/prebuilt"
_TIME = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644 << 16


def read_wheel(path: Path) -> dict[str, bytes]:
    """The files of a wheel by their names."""
    with zipfile.ZipFile(path) as archive:
        return {one.filename: archive.read(one) for one in archive.infolist() if not one.is_dir()}


def requirements_of(files: dict[str, bytes]) -> list[str]:
    """What a wheel asks for."""
    metadata = files[f"{_metadata_folder(files)}/METADATA"].decode()
    return [str(one) for one in HeaderParser().parsestr(metadata).get_all("Requires-Dist", [])]


def with_sbom(files: dict[str, bytes], name: str, document: bytes) -> dict[str, bytes]:
    """A wheel's files with an SBOM."""
    return {**files, f"{_metadata_folder(files)}/sboms/{name}": document}


def with_native(files: dict[str, bytes], objects: Path, tag: str) -> dict[str, bytes]:
    """A pure wheel's files with the objects of a folder, for a platform."""
    place = f"{_metadata_folder(files)}/WHEEL"
    lines = [
        line
        for line in files[place].decode().splitlines()
        if line and not line.startswith(("Tag:", "Root-Is-Purelib:"))
    ]
    lines += ["Root-Is-Purelib: false", f"Tag: py3-none-{tag}"]
    added = {f"{PLACE}/{one.name}": one.read_bytes() for one in (objects / INDEX, *objects.glob("*.so"))}
    return {**files, **added, place: ("\n".join(lines) + "\n").encode()}


def write_wheel(files: dict[str, bytes], folder: Path, tag: str) -> Path:
    """Write a wheel with a RECORD of its files."""
    metadata = _metadata_folder(files)
    record = f"{metadata}/RECORD"
    rows = [f"{name},{_hash(data)},{len(data)}" for name, data in sorted(files.items()) if name != record]
    files = {**files, record: ("\n".join([*rows, f"{record},,"]) + "\n").encode()}
    target = folder / f"{metadata.removesuffix('.dist-info')}-py3-none-{tag}.whl"
    # Metadata last, as the format recommends.
    order = sorted(files, key=lambda name: (name.startswith(metadata), name))
    with zipfile.ZipFile(target, "w") as archive:
        for name in order:
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr, entry.compress_type = _MODE, zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, wherever it is written
            archive.writestr(entry, files[name], compresslevel=9)
    return target


def _hash(data: bytes) -> str:
    return f"sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()}"


def _metadata_folder(files: dict[str, bytes]) -> str:
    return next(
        PurePosixPath(name).parts[0] for name in files if PurePosixPath(name).parts[0].endswith(".dist-info")
    )
