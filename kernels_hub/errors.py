"""Every error that this library raises on purpose.

    KernelsHubError
    ├── ModeError                 ValueError          a set of modes that cannot exist, or is not usable here
    ├── DeviceError               ValueError          an unknown device, or one that cannot be inferred
    ├── VersionError              ValueError          a version, specifier or revision that does not parse or conflicts
    ├── MappingError              ValueError          a mapping (object or file) that is not well formed
    │   └── MappingNotFoundError  FileNotFoundError   no mapping of that name, or no file at that path
    ├── MetadataError             ValueError          metadata.json or kernel.toml that does not parse or does not fit
    │   └── IntegrityError                            a file that is not what a digest, lock or signature says
    ├── LockError                 ValueError          a kernels.lock that is missing, malformed, or does not pin it
    ├── TrustError                PermissionError     no rule of the trust policy lets this repository's code run
    │   └── SignatureError                            a signature that is missing, or not by a trusted key
    ├── HubError                  ConnectionError     a Hub that cannot be reached, or answers with an error
    │   └── HubPermissionError    PermissionError     the Hub refuses this account or token
    ├── BuildError                ValueError          a repository that does not build, or breaks its own contract
    ├── PublishError              ValueError          what must not, or cannot, be published
    │   └── VersionExistsError    FileExistsError     that version is published already, with other content
    ├── LayerContractError        TypeError           a layer that must not replace the forward it was chosen for
    ├── RepositoryNotFoundError   FileNotFoundError   no repository at that path or under that name
    │   ├── OfflineError                              it is on a Hub, and this process may not, or cannot, ask one
    │   ├── NoVariantError                            none of its variants fits this machine (each with its reason)
    │   └── LayerNotFoundError    ValueError          the repository has no layer of that name
    ├── KernelImportError         ImportError         a kernel that raised while it was imported (cause chained)
    ├── CopyBudgetError           ValueError          a copy_budget that is neither bytes nor a share
    ├── NoKernelError             ValueError          use_fallback forbids to keep the original forward
    ├── BenchmarkError            ValueError          a repository without benchmarks, or a script that does not load
    ├── CalibrationError          ValueError          measured gains that cannot be read, or of another machine
    └── VerificationError         ValueError          a kernel disagrees with the forward that it replaces

Each is also the builtin that a caller would expect. Messages say what, where, what was expected,
and the next step.
"""

from __future__ import annotations


class KernelsHubError(Exception):
    """Root of every error raised by kernels_hub.

    Messages quote names and texts of files and Hubs: where they are printed, as in a traceback, characters that would
    control a terminal are escaped. `args` hold them as they are.
    """

    def __str__(self) -> str:
        text = super().__str__()
        if text.isprintable():
            return text
        return "".join(one if one.isprintable() or one in "\n\t" else repr(one)[1:-1] for one in text)


class ModeError(KernelsHubError, ValueError):
    """A combination of `Mode` flags that has no meaning, or not the one asked for."""


class DeviceError(KernelsHubError, ValueError):
    """A device type, property or capability that is unknown, or a device that cannot be inferred."""


class VersionError(KernelsHubError, ValueError):
    """A version, version specifier or revision that does not parse, conflicts or does not exist."""


class MappingError(KernelsHubError, ValueError):
    """A kernel mapping whose keys or values are not of the documented form."""


class MappingNotFoundError(MappingError, FileNotFoundError):
    """No shipped mapping has that name and no file lies at that path."""


class MetadataError(KernelsHubError, ValueError):
    """A repository's metadata.json or kernel.toml that cannot be read or contradicts its folder."""


class IntegrityError(MetadataError):
    """A file whose content is not what a digest, a lock or a signature says; nothing of it has run."""


class LockError(KernelsHubError, ValueError):
    """A kernels.lock that is missing, does not parse, is out of date or does not pin what is wanted."""


class TrustError(KernelsHubError, PermissionError):
    """No rule of the trust policy admits a repository; the message names the rule and the remedy."""


class SignatureError(TrustError):
    """A signature that is missing, malformed, or by a key that is not trusted for the repository."""


class HubError(KernelsHubError, ConnectionError):
    """A Hub that cannot be reached or fails; says nothing about what it holds."""


class HubPermissionError(HubError, PermissionError):
    """A Hub that refuses this account or token."""


class BuildError(KernelsHubError, ValueError):
    """A layer repository that does not build or whose code breaks the layer contract."""


class PublishError(KernelsHubError, ValueError):
    """A release that must not, or cannot, be published."""


class VersionExistsError(PublishError, FileExistsError):
    """A version that is published already, with other content."""


class LayerContractError(KernelsHubError, TypeError):
    """A layer that breaks the layer contract; never softened by `use_fallback`."""


class RepositoryNotFoundError(KernelsHubError, FileNotFoundError):
    """A repository, or a part of one, that is not there."""


class OfflineError(RepositoryNotFoundError):
    """A Hub repository that is not in the local cache while the Hub cannot be asked."""


class NoVariantError(RepositoryNotFoundError):
    """A repository none of whose variants this machine accepts."""


class LayerNotFoundError(RepositoryNotFoundError, ValueError):
    """A repository that holds no layer of the wanted name."""


class KernelImportError(KernelsHubError, ImportError):
    """A kernel whose import failed; the cause is chained."""


class CopyBudgetError(KernelsHubError, ValueError):
    """A `copy_budget` that is neither a number of bytes nor a share of the parameters."""


class NoKernelError(KernelsHubError, ValueError):
    """No kernel is usable for a layer and `use_fallback` does not allow its original forward."""


class BenchmarkError(KernelsHubError, ValueError):
    """A repository without benchmarks, or a benchmark script that does not load."""


class CalibrationError(KernelsHubError, ValueError):
    """A file of measured gains that is missing, malformed, or of another machine."""


class VerificationError(KernelsHubError, ValueError):
    """A kernel whose results differ from the original forward by more than rounding."""
