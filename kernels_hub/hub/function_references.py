"""References to functions under the names that Hugging Face's `kernels` gave them.

Each is the reference to a layer of the same kind with `func_name` for `layer_name`: a mapping entry may name a
layer class or a function, and the target decides which of them fits.
"""

from __future__ import annotations

import os

from kernels_hub.hub.references import LayerRepository, LocalLayerRepository, LockedLayerRepository


class FuncRepository(LayerRepository):
    """A function of a repository on a Hub; arguments and errors are those of `LayerRepository`.

    >>> FuncRepository("org/activation", func_name="silu_and_mul", version=1).layer_name
    'silu_and_mul'
    """

    def __init__(
        self,
        repo_id: str,
        *,
        func_name: str,
        revision: str | None = None,
        version: str | int | None = None,
        trust_remote_code: bool | list[str] | tuple[str, ...] = False,
    ) -> None:
        super().__init__(
            repo_id,
            layer_name=func_name,
            revision=revision,
            version=version,
            trust_remote_code=trust_remote_code,
        )

    @property
    def func_name(self) -> str:
        """The function's name in the repository."""
        return self.layer_name


class LocalFuncRepository(LocalLayerRepository):
    """A function of a repository in a folder; arguments and errors are those of `LocalLayerRepository`.

    >>> LocalFuncRepository("kernels/activation", func_name="silu_and_mul").func_name
    'silu_and_mul'
    """

    def __init__(self, repo_path: str | os.PathLike[str], *, func_name: str) -> None:
        super().__init__(repo_path, layer_name=func_name)

    @property
    def func_name(self) -> str:
        """The function's name in the repository."""
        return self.layer_name


class LockedFuncRepository(LockedLayerRepository):
    """A function of exactly the files that a `kernels.lock` pins; as `LockedLayerRepository`."""

    def __init__(
        self,
        repo_id: str,
        *,
        lockfile: str | os.PathLike[str] | None = None,
        func_name: str,
        trust_remote_code: bool | list[str] | tuple[str, ...] = False,
    ) -> None:
        super().__init__(
            repo_id,
            lockfile=lockfile,
            layer_name=func_name,
            trust_remote_code=trust_remote_code,
        )

    @property
    def func_name(self) -> str:
        """The function's name in the repository."""
        return self.layer_name
