"""The repositories that ship with the library."""

from __future__ import annotations

import pytest

from kernels_hub.errors import NoVariantError, RepositoryNotFoundError
from kernels_hub.repository.bundled import bundled_folder, bundled_names, bundled_repository, source_variant


def test_every_shipped_repository_reads() -> None:
    assert bundled_names()
    for name in bundled_names():
        repository = bundled_repository(name)
        assert repository.name == name
        for backend in repository.backends:
            assert "__init__.py" in source_variant(repository.path, backend).files


@pytest.mark.parametrize("name", ["no_such_repository", "../layers", "", "native"])
def test_unknown_name(name: str) -> None:
    with pytest.raises(RepositoryNotFoundError, match=f"no bundled layer repository '{name}'; there are "):
        bundled_repository(name)


def test_variants_are_read_once() -> None:
    path = bundled_folder() / bundled_names()[0]
    assert source_variant(path, "cpu") is source_variant(path, "cpu")
    assert source_variant(path, "cpu").bytecode
    with pytest.raises(NoVariantError):
        source_variant(path, "tpu")
