"""Build what is released: `make wheels` writes an sdist, a pure wheel and one with native code into dist/.

    make wheels                          all of it
    make wheels ARGS="--machine aarch64" native code for ARM, built on any machine
    make wheels ARGS="--out /elsewhere"
    make wheels ARGS="--native FOLDER"   with native code that was built before

Prints each file's size and sha256, and what auditwheel says of the wheel with native code. Two runs of the same sources
with the same releases of the tools write wheels of the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kernels_hub.version import __version__
from tools.wheels import assemble, native, sbom

LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", "results")
EPOCH = "315532800"  # 1980, the first year that zip files know
LIMIT = 15_000_000
"""Bytes that a wheel may have."""


def build_pure(root: Path, folder: Path) -> Path:
    """Build sdist and pure wheel into a folder, from a copy of the sources; the wheel."""
    with tempfile.TemporaryDirectory(prefix="kernels_hub-sources-") as name:
        sources = Path(name) / "sources"
        shutil.copytree(root, sources, ignore=LEFT_OUT)
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(sources)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        done = subprocess.run(
            command, cwd=folder, env={**environment, "SOURCE_DATE_EPOCH": EPOCH}, check=False, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    if done.returncode:
        raise native.PrebuildError(f"{' '.join(command)}:\n{done.stdout[-2000:]}")
    return next(folder.glob("*-py3-none-any.whl"))


def finish(pure: Path, objects: Path | None, platform: native.Platform | None, folder: Path) -> list[Path]:
    """The wheels with their SBOMs: the pure one, and that with native code."""
    files = assemble.read_wheel(pure)
    needs = assemble.requirements_of(files)
    made = [
        assemble.write_wheel(
            assemble.with_sbom(files, sbom.NAME, sbom.sbom(__version__, needs, {})), folder, "any"
        )
    ]
    if objects is not None and platform is not None:
        digests = {
            f"{assemble.PLACE}/{one.name}": hashlib.sha256(one.read_bytes()).hexdigest()
            for one in objects.glob("*.so")
        }
        document = sbom.sbom(
            __version__, needs, digests, f"ziglang {native.zig_version()}", native.llvm_version()
        )
        with_code = assemble.with_native(files, objects, platform.tag)
        made.append(
            assemble.write_wheel(assemble.with_sbom(with_code, sbom.NAME, document), folder, platform.tag)
        )
    return made


def audited(wheel: Path) -> str:
    """The platform that auditwheel says a wheel is for, and the versions of symbols that it asks for."""
    done = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(wheel)],
        capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "1000"},
    )  # fmt: skip
    if done.returncode:
        raise native.PrebuildError(f"auditwheel show {wheel}:\n{(done.stdout + done.stderr)[-2000:]}")
    return " ".join(done.stdout.split())


def problems_of(wheel: Path, platform: native.Platform) -> Iterator[str]:
    """Why a wheel with native code is not to be released."""
    if wheel.stat().st_size > LIMIT:
        yield f"{wheel.name} has more than {LIMIT / 1e6:.0f} MB"
    named = re.search(r'following platform tag: "manylinux_(\d+)_(\d+)_(\w+)"', text := audited(wheel))
    newest = tuple(map(int, native.GLIBC.split(".")))
    if named is None or named[3] != platform.machine or (int(named[1]), int(named[2])) > newest:
        yield f"{wheel.name} is not for {platform.tag}: {text}"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=native.ROOT / "dist")
    parser.add_argument("--machine", choices=sorted(native.PLATFORMS), default="x86_64")
    parser.add_argument("--native", type=Path, help="a folder with an index.json and its objects")
    options = parser.parse_args()
    platform = native.PLATFORMS[options.machine]
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kernels_hub-wheels-") as name:
        folder = Path(name)
        if options.native is None:
            objects = folder / "native"
            print(f"== native code for {platform.machine}: minutes", flush=True)
            native.build(native.units_of(native.ROOT), platform, objects)
        else:
            objects = options.native.resolve()
        print("== sdist and wheels", flush=True)
        (folder / "pure").mkdir()
        pure = build_pure(native.ROOT, folder / "pure")
        made = finish(pure, objects, platform, out)
        (sdist,) = (folder / "pure").glob("*.tar.gz")
        made.append(Path(shutil.copy(sdist, out)))
    for one in made:
        digest = hashlib.sha256(one.read_bytes()).hexdigest()
        print(f"{one.name}: {one.stat().st_size / 1e6:.2f} MB, sha256 {digest}")
    print(audited(made[1]))
    sys.exit("; ".join(problems_of(made[1], platform)) or 0)


if __name__ == "__main__":
    main()
