"""The packages of the distribution. Everything else about it is in pyproject.toml.

Three packages live beside `kernels_hub/`, not in it, and are installed as its sub-packages:
`layers/` as `kernels_hub.layers`, and so on. pyproject.toml says where each lies (`package-dir`);
setuptools cannot discover packages under another name than their folder's, so that is done here.
"""

from setuptools import find_packages, setup

ROOTS = ("layers", "mappings", "compiler")

setup(
    packages=[
        *find_packages(include=["kernels_hub", "kernels_hub.*"]),
        *(f"kernels_hub.{name}" for root in ROOTS for name in find_packages(include=[root, f"{root}.*"])),
    ]
)
