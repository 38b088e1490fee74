"""Checks names and paths of requests: what can name nothing here is refused before any lookup.

Names end up in URLs, in git trees, and on the disks of every client, Windows and macOS included.
"""

from __future__ import annotations

import re
import unicodedata

from kernels_hub.server.refusal import bad_request

MAX_PATH_BYTES = 1024
MAX_PART_BYTES = 255
MAX_REF_BYTES = 200
RESERVED_NAMES = frozenset(
    (
        *(
            "api",
            "blob",
            "buckets",
            "commit",
            "commits",
            "datasets",
            "docs",
            "health",
            "join",
            "kernels",
            "lfs",
        ),
        *(
            "login",
            "logout",
            "metrics",
            "models",
            "new",
            "organizations",
            "raw",
            "refs",
            "resolve",
            "settings",
        ),
        *("spaces", "static", "tree", "v1", "v2", "web", "xet"),
    )
)
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# What Windows cannot hold in a name, and what git's own checks of trees refuse.
_FORBIDDEN_IN_PART = frozenset('\\:*?"<>|')
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_GIT_FOLDER = re.compile(r"(\.git|git~\d+)", re.IGNORECASE)
_GIT_FILES = frozenset({".gitmodules"})
# Characters that HFS+ ignores in names: with them `.git` has more spellings.
_IGNORED_BY_HFS = dict.fromkeys(
    [*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF], None
)


def is_name(text: object) -> bool:
    """Whether this can be the name of an account or a repository."""
    return (
        isinstance(text, str) and _NAME.fullmatch(text) is not None and ".." not in text and "--" not in text
    )


def checked_account_name(text: str) -> str:
    """A name for a user or organisation, or 400."""
    if not is_name(text) or text.lower() in RESERVED_NAMES or text.endswith(".git"):
        raise bad_request(
            f"{text[:100]!r} cannot name an account: letters, digits, '-', '_' and '.', at most 96, "
            "beginning with a letter or digit, without '--' and '..', and not a word the server uses itself"
        )
    return text


def checked_repository_name(text: object) -> str:
    """The second half of a repository's id, or 400."""
    if not isinstance(text, str) or not is_name(text) or text.lower().endswith((".git", ".ipynb")):
        raise bad_request(
            f"{str(text)[:100]!r} cannot name a repository: letters, digits, '-', '_' and '.', at most 96, "
            "beginning with a letter or digit, without '--' and '..', and not ending in '.git'"
        )
    return text


def is_commit(text: str) -> bool:
    """Whether this has the form of a commit id."""
    return _COMMIT.fullmatch(text) is not None


def is_sha256(text: object) -> bool:
    """Whether this has the form of a SHA-256 in hexadecimal."""
    return isinstance(text, str) and _SHA256.fullmatch(text) is not None


def checked_path(path: object) -> str:
    """A path inside a repository, relative, with forward slashes; 400 for every other spelling."""
    if not isinstance(path, str) or not path:
        raise bad_request(f"a path inside the repository is expected, not {str(path)[:100]!r}")
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        raise bad_request("a path has characters that are not Unicode text") from None
    if len(encoded) > MAX_PATH_BYTES:
        raise bad_request(f"a path of {len(encoded)} bytes: at most {MAX_PATH_BYTES}")
    for part in path.split("/"):
        if problem := _part_problem(part):
            raise bad_request(f"the path {path[:200]!r} is not allowed: {problem}")
    return path


def _part_problem(part: str) -> str | None:
    if not part:
        return "it has an empty part (a leading, trailing or double '/')"
    if part in (".", ".."):
        return f"it has the part {part!r}"
    if len(part.encode()) > MAX_PART_BYTES:
        return f"a part is longer than {MAX_PART_BYTES} bytes"
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in part):
        return "it has a control character"
    if wrong := _FORBIDDEN_IN_PART.intersection(part):
        return f"it has {min(wrong)!r}"
    plain = unicodedata.normalize("NFKC", part.translate(_IGNORED_BY_HFS)).rstrip(". ")
    if not plain:
        return "a part is nothing but dots, spaces or invisible characters"
    if _GIT_FOLDER.fullmatch(plain):
        return f"{part!r} is a name of git's own"
    if plain.lower() in _GIT_FILES:
        return f"{part!r}: there are no submodules here"
    if part[-1] in ". ":
        return "a part ends with a dot or a space, which Windows drops"
    if _DEVICES.fullmatch(part):
        return f"{part!r} is a device on Windows"
    return None


def collision_key(path: str) -> str:
    """Equal for paths that are one file on a disk which ignores case or normalizes Unicode."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def checked_ref_name(name: object) -> str:
    """A branch's or tag's short name, by the rules of `git check-ref-format`; 400 otherwise."""
    if not isinstance(name, str) or not name:
        raise bad_request("a branch or tag needs a name")
    wrong = (
        len(name.encode("utf-8", "surrogatepass")) > MAX_REF_BYTES
        or re.search(r"[\x00-\x20\x7f~^:?*\[\\\ud800-\udfff]|\.\.|@\{|//", name)
        or name.startswith(("/", "-", "refs/"))
        or name.endswith(("/", "."))
        or name in ("@", "HEAD")
        or any(part.startswith(".") or part.endswith(".lock") for part in name.split("/"))
        or is_commit(name)
    )
    if wrong:
        raise bad_request(f"{name[:200]!r} cannot name a branch or tag")
    return name
