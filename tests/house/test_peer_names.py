"""The public names of Hugging Face's `kernels` work here: same names, same arguments, or a reason why not."""

from __future__ import annotations

import inspect

import kernels
import pytest

import kernels_hub

# (name, argument of the peer's) -> why ours differs.
DIFFERENT = {
    ("CUDAProperties", "max_capability"): "optional: without one there is no upper bound",
    ("ROCMProperties", "max_capability"): "optional: without one there is no upper bound",
    ("LoadedKernel", "metadata"): "a property: it is that of the kernel's files",
    ("LoadedKernel", "repo_info"): "optional",
    ("get_locked_kernel", "lockfile"): "optional: without one the caller's project is looked at",
    ("get_locked_kernel", "user_agent"): "a lock pins digests: whoever serves the files, they are these",
    ("has_kernel", "trust_remote_code"): "nothing is run and nothing but lists is fetched, so nobody is trusted",
    ("has_kernel", "check_arch"): "architectures stand in metadata.json, and nothing but lists is fetched",
    ("load_kernel", "lockfile"): "optional: without one the caller's project is looked at",
    ("use_kernelized_func", "args"): "called `functions`; it can only be given by position",
}  # fmt: skip

# Attributes of the peer's classes that are no part of its documentation, or made by its binding to Rust.
OF_ITS_DATACLASSES = {"validate", "validate_capability_range"}
OF_ITS_BINDING = {
    "from_bytes", "read_from_file",  # `kernels_hub.repository.metadata.read_metadata` takes a folder
    "name",  # a field without a default, which the class itself does not have
}  # fmt: skip

MISSING: dict[str, str] = {}


@pytest.mark.parametrize("name", sorted(set(kernels.__all__) - {"__version__"} - set(MISSING)))
def test_a_name_of_the_peer(name: str) -> None:
    assert name in kernels_hub.__all__, f"{name} is missing"
    theirs, ours = getattr(kernels, name), getattr(kernels_hub, name)
    if inspect.isclass(theirs):
        missing = (
            {one for one in dir(theirs) if not one.startswith("_")}
            - set(dir(ours))
            - OF_ITS_DATACLASSES
            - OF_ITS_BINDING
        )
        assert not missing, f"{name} lacks {sorted(missing)}"
    try:
        expected = inspect.signature(theirs).parameters
    except ValueError:  # written in Rust
        return
    parameters = inspect.signature(ours).parameters
    for argument, parameter in expected.items():
        mine = parameters.get(argument)
        same = mine is not None and (mine.kind, mine.default) == (parameter.kind, parameter.default)
        assert same == ((name, argument) not in DIFFERENT), (
            f"{name}({argument}): {mine}, the peer has {parameter}"
        )
    added = [one for key, one in parameters.items() if key not in expected]
    for parameter in added:
        optional = (
            parameter.default is not inspect.Parameter.empty or parameter.kind is parameter.VAR_POSITIONAL
        )
        assert optional or (name, "metadata") in DIFFERENT, (
            f"{name}: the additional {parameter.name} must be optional"
        )


def test_every_difference_exists() -> None:
    assert not set(MISSING) & set(kernels_hub.__all__)
    for name, argument in DIFFERENT:
        assert argument in inspect.signature(getattr(kernels, name)).parameters, (name, argument)
