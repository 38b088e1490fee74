"""The SBOM of a wheel: what went into it, as CycloneDX JSON (PEP 770 puts it into `.dist-info/sboms/`).

Components are the shared objects, what Zig links into them, and the Python distributions that the wheel asks for. It
names no time and no machine: the same wheel has the same SBOM.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from packaging.requirements import Requirement

NAME = "kernels-hub.cdx.json"
_LINKED = (
    ("libc++", "pkg:generic/libcxx", "Apache-2.0 WITH LLVM-exception"),
    ("libc++abi", "pkg:generic/libcxxabi", "Apache-2.0 WITH LLVM-exception"),
    ("libunwind", "pkg:generic/libunwind", "Apache-2.0 WITH LLVM-exception"),
    ("compiler-rt (of Zig)", "pkg:generic/zig-compiler-rt", "MIT"),
)
"""What Zig links into an object that is written in C++."""


def sbom(
    version: str,
    requirements: Sequence[str],
    objects: Mapping[str, str],
    compiler: str | None = None,
    llvm: str | None = None,
) -> bytes:
    """A document. objects: file -> its sha256. compiler, llvm: what built them, and whose runtime is linked in."""
    components: list[dict[str, Any]] = [
        {"type": "file", "name": name, "hashes": [{"alg": "SHA-256", "content": digest}]}
        for name, digest in sorted(objects.items())
    ]
    if objects:
        components += [
            {
                "type": "library", "name": name, "version": str(llvm), "purl": f"{purl}@{llvm}",
                "licenses": [{"expression": licence}],
            }
            for name, purl, licence in _LINKED
        ]  # fmt: skip
    for text in requirements:
        one = Requirement(text)
        if one.marker is None or "extra" not in str(one.marker):
            components.append(
                {
                    "type": "library", "name": one.name, "purl": f"pkg:pypi/{one.name.replace('_', '-').lower()}",
                    "scope": "required", "description": f"asked for, not included: {one.specifier}",
                }
            )  # fmt: skip
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library", "bom-ref": "kernels-hub", "name": "kernels-hub", "version": version,
                "purl": f"pkg:pypi/kernels-hub@{version}", "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": components,
    }  # fmt: skip
    if compiler is not None:
        name, _, release = compiler.partition(" ")
        tool = {"type": "application", "name": name, "version": release}
        document["metadata"]["tools"] = {"components": [tool]}
    text = json.dumps(document, indent=1, sort_keys=True)
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}"
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()
