"""Compare two releases of a repository: what changed, and which version number that asks for.

    major   what a user of the older one may rely on is gone or different: a layer, a function, a
            variant, a flag or a signature; another licence; a dependency that was not needed
    minor   more than before: a layer, a function, a variant, an optional argument
    patch   the same interface with other files

Source: semver.org. Below 1.0.0 the minor number takes the part of the major one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.version import Version

from kernels_hub.repository.interface import CallableInterface, Interface, Parameter, VariantInterface

NONE, PATCH, MINOR, MAJOR = "none", "patch", "minor", "major"
_ORDER = (NONE, PATCH, MINOR, MAJOR)
_POSITIONAL = ("positional-only", "positional")


@dataclass(frozen=True)
class Change:
    """One difference in the interface."""

    bump: str
    """Which part of the version it asks to raise: "patch", "minor" or "major"."""
    what: str
    variants: tuple[str, ...] = ()
    """The variants that it is in; () for all of them."""

    def __str__(self) -> str:
        return self.what + (f" (in {', '.join(self.variants)})" if self.variants else "")


@dataclass(frozen=True)
class FileChange:
    """A file that one of the two does not have, or has with other content."""

    path: str
    """In the repository: "build/<variant>/…"."""
    change: str
    """"added", "removed" or "changed"."""


@dataclass(frozen=True)
class Comparison:
    """What differs between an older and a newer release."""

    old: Interface
    new: Interface
    changes: tuple[Change, ...]
    """Those that break something first."""
    files: tuple[FileChange, ...]

    @property
    def bump(self) -> str:
        """The least that the version has to be raised by: "none", "patch", "minor" or "major"."""
        if self.changes:
            return self.changes[0].bump
        return PATCH if self.files else NONE

    @property
    def breaking(self) -> tuple[Change, ...]:
        """What breaks code that uses the older one."""
        return tuple(change for change in self.changes if change.bump == MAJOR)

    def next_version(self, version: str) -> str:
        """The lowest version after `version` that the changes allow."""
        current = Version(version)
        bump = self.bump
        if current.major == 0 and bump == MAJOR:
            bump = MINOR
        major, minor, patch = current.major, current.minor, current.micro
        if bump == MAJOR:
            return f"{major + 1}.0.0"
        if bump == MINOR:
            return f"{major}.{minor + 1}.0"
        return f"{major}.{minor}.{patch + (bump != NONE)}"

    def allows(self, old_version: str, new_version: str) -> bool:
        """Whether a release may be called `new_version` after `old_version`."""
        return not self.breaking or _raised(Version(old_version), Version(new_version))


def compare(old: Interface, new: Interface) -> Comparison:
    """What changed from `old` to `new`."""
    found: dict[tuple[str, str], list[str]] = {}
    common = [name for name in new.variants if name in old.variants]
    for name in common:
        for bump, what in _variant_changes(old.variants[name], new.variants[name]):
            found.setdefault((bump, what), []).append(name)
    changes = [
        Change(bump, what, () if len(variants) == len(common) else tuple(variants))
        for (bump, what), variants in found.items()
    ]
    changes += [Change(MAJOR, f"variant {name} is gone") for name in old.variants if name not in new.variants]
    changes += [Change(MINOR, f"variant {name} is new") for name in new.variants if name not in old.variants]
    if old.name != new.name:
        changes.append(Change(MAJOR, f"the kernel is named {new.name!r}, was {old.name!r}"))
    if old.license != new.license:
        changes.append(Change(MAJOR, f"the licence is {new.license}, was {old.license}"))
    changes.sort(key=lambda change: (-_ORDER.index(change.bump), change.what))
    return Comparison(old, new, tuple(changes), tuple(_file_changes(old, new)))


def _raised(old: Version, new: Version) -> bool:
    """Whether the part that tells of breaking changes is higher."""
    if old.major == new.major == 0:
        return new.minor > old.minor
    return new.major > old.major


def _variant_changes(old: VariantInterface, new: VariantInterface) -> Iterator[tuple[str, str]]:
    for kind, before, after in (
        ("layer", old.layers, new.layers),
        ("function", old.functions, new.functions),
    ):
        yield from ((MAJOR, f"{kind} {name} is gone") for name in before if name not in after)
        yield from (
            (MINOR, f"{kind} {name}({after[name].signature}) is new") for name in after if name not in before
        )
        for name in before:
            if name in after:
                yield from _callable_changes(kind, before[name], after[name])
    for what, had, has in (
        ("Python package", old.python_depends, new.python_depends),
        ("kernel", old.kernel_depends, new.kernel_depends),
    ):
        yield from ((MAJOR, f"needs the {what} {name}") for name in has if name not in had)
        yield from ((PATCH, f"no longer needs the {what} {name}") for name in had if name not in has)
    if old.archs != new.archs:
        gone = sorted(set(old.archs) - set(new.archs)) if new.archs else []
        shown = ", ".join(new.archs) or "any"
        # Without a list every architecture was promised.
        narrower = bool(gone) or (not old.archs and bool(new.archs))
        yield MAJOR if narrower else MINOR, f"architectures are {shown}, were {', '.join(old.archs) or 'any'}"


def _callable_changes(kind: str, old: CallableInterface, new: CallableInterface) -> Iterator[tuple[str, str]]:
    if old.parameters != new.parameters:
        bump = MAJOR
        if kind == "function" and old.parameters is not None and new.parameters is not None:
            bump = MINOR if _accepts_the_same(old.parameters, new.parameters) else MAJOR
        yield bump, f"{kind} {old.name} takes ({new.signature}), took ({old.signature})"
    yield from _flag_changes(f"{kind} {old.name}", old.flags, new.flags)


def _accepts_the_same(old: tuple[Parameter, ...], new: tuple[Parameter, ...]) -> bool:
    """Whether every call that fits `old` fits `new` and means the same.

    For functions only: a layer's forward has to equal the forward that it replaces.
    """
    before = [parameter for parameter in old if parameter.kind in _POSITIONAL]
    after = [parameter for parameter in new if parameter.kind in _POSITIONAL]
    if [(p.name, p.kind) for p in after[: len(before)]] != [(p.name, p.kind) for p in before]:
        return False
    if any(o.default is not None and n.default != o.default for o, n in zip(before, after, strict=False)):
        return False
    others = {parameter.name: parameter for parameter in new if parameter.kind not in _POSITIONAL}
    known = {parameter.name: parameter for parameter in old if parameter.kind not in _POSITIONAL}
    if any(others.get(name) != parameter for name, parameter in known.items()):
        return False
    added = after[len(before) :]
    added_by_name = [p for p in added if p.kind == "positional"]
    added_by_name += [p for name, p in others.items() if name not in known and p.kind == "keyword-only"]
    taken = {parameter.kind for parameter in old}
    if ("*" in taken and added) or ("**" in taken and added_by_name):
        return False  # *rest or **more used to take what the new argument takes now
    return all(parameter.default is not None for parameter in (*added, *added_by_name))


def _flag_changes(
    owner: str, old: Mapping[str, bool | str], new: Mapping[str, bool | str]
) -> Iterator[tuple[str, str]]:
    for flag in sorted({*old, *new}):
        before, after = old.get(flag, False), new.get(flag, False)
        if before == after:
            continue
        # What is computed may be anything: a change of it is one of the files, not of the interface.
        if isinstance(before, bool) and isinstance(after, bool):
            yield MAJOR if before else MINOR, f"{owner} has {flag}={after}, had {before}"
        else:
            yield PATCH, f"{owner} computes {flag} from {after}, was {before}"


def _file_changes(old: Interface, new: Interface) -> Iterator[FileChange]:
    before, after = _files(old), _files(new)
    for path in sorted({*before, *after}):
        if path not in after:
            yield FileChange(path, "removed")
        elif path not in before:
            yield FileChange(path, "added")
        elif before[path] != after[path]:
            yield FileChange(path, "changed")


def _files(interface: Interface) -> dict[str, str]:
    return {
        f"build/{variant.name}/{inside}": digest
        for variant in interface.variants.values()
        for inside, digest in variant.files.items()
    }
