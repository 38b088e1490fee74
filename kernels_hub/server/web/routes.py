"""The pages of the Hub. They show what their viewer may download, and nothing else: see `signed_in`.

    GET /                                   repositories; ?q= searches, facets filter, ?sort=
    GET /[kernels/]<org>/<name>             a repository; ?revision=
    GET …/versions                          every release; ?page=
    GET …/tree/<revision>[/<path>]          a folder
    GET …/blob/<revision>/<path>            a file's source
    GET …/picture/<revision>/<path>         a picture that a card shows
    GET …/commits/<revision>                history
    GET …/commit/<revision>                 leads to what a commit changed
    GET …/compare                           two versions; ?from= &to= &path= &view=
    GET …/goto                              where the choice of a version leads

A revision is one segment: its slashes are quoted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import zip_longest
from threading import Lock
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from kernels_hub.server.audit import utc
from kernels_hub.server.call import HubRequest, Route
from kernels_hub.server.download_counts import RECENT_DAYS
from kernels_hub.server.facets import devices_of, framework_of, platform_of
from kernels_hub.server.refs import DEFAULT_BRANCH
from kernels_hub.server.refusal import Refusal, entry_not_found, header_text
from kernels_hub.server.repositories import Repository
from kernels_hub.server.store import CommitInfo
from kernels_hub.server.web import signed_in
from kernels_hub.server.web.card import CardPlace, render_card
from kernels_hub.server.web.comparison import compare_revisions, text_of
from kernels_hub.server.web.contents import Contents, Facts, Revision
from kernels_hub.server.web.last_changes import LastChanges
from kernels_hub.server.web.list_page import list_values
from kernels_hub.server.web.pages import Pages, quoted, redirect, with_query
from kernels_hub.server.web.source import LINES_SHOWN, SHOWN_LIMIT, highlight_block, highlight_file
from kernels_hub.server.web.usage import usage_of

_FACTS_KEPT = 4096
_VERSIONS = 200
_NEWEST_VERSIONS = 8
_VERSION_ROWS = 50
_DEVICES = 5
_TREE_ROWS = 2000
_COMMITS = 50
_README = "README.md"
_PICTURES = {
    "gif": "image/gif", "jpeg": "image/jpeg", "jpg": "image/jpeg", "png": "image/png", "svg": "image/svg+xml",
    "webp": "image/webp",
}  # fmt: skip

Handler = Callable[[HubRequest], Response]


class Site:
    """The handlers, with what they keep between requests."""

    def __init__(self) -> None:
        self.pages = Pages()
        self._facts: OrderedDict[tuple[str, str], Facts] = OrderedDict()
        self._changes = LastChanges()
        self._guard = Lock()

    def page(self, handler: Handler) -> Handler:
        """A handler whose refusals are pages too. What must not be seen is not found."""

        def answer(call: HubRequest) -> Response:
            try:
                return handler(call)
            except Refusal as refusal:
                status = 404 if refusal.status == 401 else refusal.status
                reads = call.request.method in ("GET", "HEAD")
                heading = "Not found" if status == 404 else f"This cannot be {'shown' if reads else 'done'}"
                message = refusal.message
                if status == 404 and reads:
                    message = "There is no such page here, or you may not see it."
                response = self.pages.render("refused.html", call, status, heading=heading, message=message)
                response.headers["X-Error-Message"] = header_text(message)
                return response

        return answer

    def static(self, call: HubRequest) -> Response:
        """The style sheet and the icon."""
        response = self.pages.static(call.params["file"], call.query("v"))
        if response is None:
            raise entry_not_found(call.params["file"])
        return response

    # -- pages

    def index(self, call: HubRequest) -> Response:
        """The repositories that the viewer may download."""
        return self.pages.render("repositories.html", call, **list_values(call))

    def repository(self, call: HubRequest) -> Response:
        """The card of a version, and what is in it."""
        contents = _contents(call)
        revision = contents.revision(call.query("revision") or contents.default)
        page, facts = contents.repository.page, self._facts_of(contents, revision.commit)
        card = self._card(contents, revision)
        counted = call.hub.downloads.of(contents.repository.id)
        branches = contents.branches[:_VERSIONS]
        variants = [
            {
                "href": f"{page}/tree/{quoted(revision.name)}/build/{quote(variant.name)}",
                "facts": variant,
                "devices": ", ".join(devices_of(variant))
                if len(devices_of(variant)) < _DEVICES
                else "every device",
                "framework": framework_of(variant),
                "platform": platform_of(variant),
                "downloads": counted.by_variant.get(variant.name, 0),
            }
            for variant in facts.variants
        ]
        return self._inside(
            call,
            contents,
            "repository.html",
            "card",
            revision=revision,
            facts=facts,
            card=card,
            versions=_versions(contents, 0, _NEWEST_VERSIONS),
            total_versions=len(contents.tags) + len(_removed(contents)),
            branches=[{"name": name, "href": with_query(page, revision=name)} for name in branches],
            variants=variants,
            downloads=counted,
            recent_days=RECENT_DAYS,
            usage=[
                (way, highlight_block(way.text, way.language))
                for way in usage_of(contents.repository, revision, facts, self.pages.endpoint(call))
            ],
        )

    def versions(self, call: HubRequest) -> Response:
        """Every release: when, of which commit, what became of it."""
        contents = _contents(call)
        revision = contents.revision(contents.default)
        pages = max(1, -(-len(contents.tags) // _VERSION_ROWS))
        page = min(call.number("page", 1, 10**6), pages)
        address = f"{contents.repository.page}/versions"
        return self._inside(
            call,
            contents,
            "versions.html",
            "versions",
            revision=revision,
            versions=_versions(contents, (page - 1) * _VERSION_ROWS, _VERSION_ROWS),
            removed=_removed(contents)[:_VERSIONS] if page == pages else [],
            branches=[
                {"name": name, "href": with_query(contents.repository.page, revision=name)}
                for name in contents.branches[:_VERSIONS]
            ],
            newer=with_query(address, page=page - 1) if page > 1 else None,
            older=with_query(address, page=page + 1) if page < pages else None,
            page=page,
            pages=pages,
        )

    def _card(self, contents: Contents, revision: Revision) -> object:
        name = revision.name
        text = contents.text(revision.commit, _README)
        if text is None:
            # The peer's builder keeps the card on main and the builds on their own branches.
            name = DEFAULT_BRANCH
            text = contents.text(contents.revision(name).commit, _README)
        if text is None:
            return None
        page = contents.repository.page
        place = CardPlace(f"{page}/blob/{quoted(name)}", f"{page}/picture/{quoted(name)}")
        return render_card(text, place)

    def tree(self, call: HubRequest) -> Response:
        """The files of a folder."""
        contents = _contents(call)
        revision = contents.revision(call.params["revision"])
        path, page = call.params.get("path", ""), contents.repository.page
        listing = contents.listing(revision.commit)
        if path and not contents.entry(revision.commit, path).is_folder:
            return redirect(f"{page}/blob/{quoted(revision.name)}/{quote(path)}")
        prefix = f"{path}/" if path else ""
        inside = [
            entry
            for entry in listing.entries.values()
            if entry.path.startswith(prefix) and "/" not in entry.path[len(prefix) :]
        ]
        base = f"{page}/tree/{quoted(revision.name)}"
        parent = None if not path else f"{base}/{quote(path.rpartition('/')[0])}".rstrip("/")
        changes = self._changes.of(contents.store, contents.repository, revision.commit, path)
        entries = [
            {
                "name": entry.path[len(prefix) :],
                "changed": _change(page, changes.get(entry.path[len(prefix) :])),
                "folder": entry.is_folder,
                "size": None if entry.is_folder else entry.size,
                "large": entry.large is not None,
                "href": f"{page}/{'tree' if entry.is_folder else 'blob'}/{quoted(revision.name)}/{quote(entry.path)}",
            }
            for entry in sorted(inside, key=lambda entry: (not entry.is_folder, entry.path))[:_TREE_ROWS]
        ]
        return self._inside(
            call,
            contents,
            "tree.html",
            "files",
            revision=revision,
            path=path,
            entries=entries,
            more=len(inside) - len(entries),
            parent=parent,
        )

    def blob(self, call: HubRequest) -> Response:
        """A file, line by line."""
        contents = _contents(call)
        revision = contents.revision(call.params["revision"])
        path, page = call.params["path"], contents.repository.page
        entry = contents.entry(revision.commit, path)
        if entry.is_folder:
            return redirect(f"{page}/tree/{quoted(revision.name)}/{quote(path)}")
        text, reason = text_of(contents, entry, SHOWN_LIMIT)
        if text is not None and text.count("\n") > LINES_SHOWN:
            text, reason = None, "This file has too many lines to show here."
        return self._inside(
            call,
            contents,
            "source.html",
            "files",
            revision=revision,
            path=path,
            lines=None if text is None else highlight_file(path, text),
            reason=reason,
            size=entry.size,
            large=entry.large is not None,
            sha256=entry.large.sha256 if entry.large else None,
            download=f"{page}/resolve/{quoted(revision.name)}/{quote(path)}",
        )

    def picture(self, call: HubRequest) -> Response:
        """A picture of a card, as what its name says it is; nothing of it runs, wherever it is opened."""
        contents = _contents(call)
        path = call.params["path"]
        entry = contents.entry(contents.revision(call.params["revision"]).commit, path)
        kind = _PICTURES.get(path.rpartition(".")[2].lower())
        content = None if kind is None or entry.is_folder else contents.read(entry, SHOWN_LIMIT)
        if kind is None or content is None:
            raise entry_not_found(path)
        return self.pages.picture(content, kind, call)

    def compare(self, call: HubRequest) -> Response:
        """What changed between two versions."""
        contents = _contents(call)
        old, new = _two_revisions(contents, call.query("from"), call.query("to"))
        view = "split" if call.query("view") == "split" else "unified"
        only = call.query("path")
        changes, files = compare_revisions(contents, old, new, only=only, split=view == "split")
        return self._inside(
            call,
            contents,
            "compare.html",
            "compare",
            revision=new,
            old=old,
            new=new,
            view=view,
            only=only,
            changes=changes,
            files=files,
            rest=changes[len(files) :],
        )

    def commits(self, call: HubRequest) -> Response:
        """What led to a revision, newest first."""
        contents = _contents(call)
        revision, page = contents.revision(call.params["revision"]), contents.repository.page
        start = call.query("after") or revision.commit
        store, repository = contents.store, contents.repository
        found, following = store.history(repository, store.resolve(repository, start), _COMMITS)
        commits = [
            {
                "title": info.title,
                "author": info.author,
                "date": info.date,
                "oid": info.oid,
                "href": f"{page}/commit/{info.oid}",
                "files": f"{page}/tree/{info.oid}",
            }
            for info in found
        ]
        older = following and with_query(f"{page}/commits/{quoted(revision.name)}", after=following)
        return self._inside(
            call, contents, "commits.html", "commits", revision=revision, commits=commits, older=older
        )

    def commit(self, call: HubRequest) -> Response:
        """What a commit changed: its comparison with the one before."""
        contents = _contents(call)
        info = contents.store.commit_info(
            contents.repository, contents.revision(call.params["revision"]).commit
        )
        if not info.parents:
            return redirect(f"{contents.repository.page}/tree/{info.oid}")
        return redirect(
            with_query(f"{contents.repository.page}/compare", **{"from": info.parents[0], "to": info.oid})
        )

    def goto(self, call: HubRequest) -> Response:
        """From the form that chooses a version to its page."""
        contents = _contents(call)
        revision = contents.revision(call.query("revision") or contents.default)
        path, page = call.query("path"), contents.repository.page
        entry = contents.listing(revision.commit).entries.get(path)
        if entry is None:
            return redirect(f"{page}/tree/{quoted(revision.name)}")
        kind = "tree" if entry.is_folder else "blob"
        return redirect(f"{page}/{kind}/{quoted(revision.name)}/{quote(path)}")

    # -- what they share

    def _inside(
        self,
        call: HubRequest,
        contents: Contents,
        template: str,
        tab: str,
        *,
        revision: Revision,
        **values: Any,
    ) -> Response:
        repository = contents.repository
        facts = values.pop("facts", None)
        if facts is None:
            facts = self._facts_of(contents, revision.commit)
        repo = {
            "namespace": repository.namespace,
            "name": repository.name,
            "full_name": repository.full_name,
            "kind": repository.type,
            "private": repository.private,
            "href": repository.page,
            "summary": facts.summary,
            "apart": _apart(call, repository),
        }
        rev = {
            "name": revision.name,
            "commit": revision.commit,
            "date": revision.date,
            "yanked": revision.yanked,
            "quoted": quoted(revision.name),
            "is_default": revision.name == contents.default,
        }
        return self.pages.render(
            template,
            call,
            tab=tab,
            repo=repo,
            rev=rev,
            facts=facts,
            revisions=_choices(contents, *([old.name] if (old := values.get("old")) else []), revision.name),
            **values,
        )

    def _facts_of(self, contents: Contents, commit: str) -> Facts:
        key = (contents.repository.id, commit)
        with self._guard:
            if (known := self._facts.get(key)) is not None:
                self._facts.move_to_end(key)
                return known
        facts = contents.facts(commit)
        if facts.license is None:
            facts = replace(facts, license=contents.card_license(commit))
        with self._guard:
            self._facts[key] = facts
            while len(self._facts) > _FACTS_KEPT:
                self._facts.popitem(last=False)
        return facts


def _apart(call: HubRequest, repository: Repository) -> str | None:
    """What a mirror says of a repository that is not as at its origin."""
    row = call.hub.mirror.row(repository)
    if row is not None and row.gone:
        return f"The origin has it no more, or shows it to others alone, since {utc(row.gone)}; it stays as it was."
    return None if row is None or not row.problem else row.problem


def _contents(call: HubRequest) -> Contents:
    """The repository of the path, if the viewer may download it."""
    repository = call.viewable()
    call.hub.access.check_download(call.viewer, repository)
    return Contents(call.hub.store, repository)


def _two_revisions(contents: Contents, old: str, new: str) -> tuple[Revision, Revision]:
    """The revisions to compare: those asked for, else the newest release and the one before it."""
    new, tags = new or contents.default, contents.tags
    if not old:
        older = tags[tags.index(new) + 1 :] if new in tags else tags
        old = older[0] if older else new
    return contents.revision(old), contents.revision(new)


def _choices(contents: Contents, *current: str) -> list[str]:
    """Names to choose a revision from, the current ones among them."""
    names = [*contents.tags[:_VERSIONS], *contents.branches[:_VERSIONS]]
    return list(dict.fromkeys([*(name for name in current if name not in names), *names]))


def _versions(contents: Contents, start: int, count: int) -> list[dict[str, object]]:
    """Some of the releases, newest first, each with what it is compared with."""
    page, tags = contents.repository.page, contents.tags
    shown = tags[start : start + count]
    return [
        {
            "name": release.name,
            "date": release.date,
            "commit": release.commit,
            "files": f"{page}/tree/{quoted(release.name)}",
            "yanked": release.yanked,
            "changed": contents.changed.get(release.name),
            "href": with_query(page, revision=release.name),
            "previous": previous,
            "compare": with_query(f"{page}/compare", **{"from": previous, "to": release.name}),
        }
        for release, previous in zip_longest(
            map(contents.revision, shown), tags[start + 1 : start + len(shown) + 1]
        )
    ]


def _removed(contents: Contents) -> list[tuple[str, str]]:
    """Releases that are no more, and what became of them."""
    return [item for item in contents.changed.items() if item[0] not in contents.tags]


def _change(page: str, commit: CommitInfo | None) -> dict[str, str] | None:
    """The commit that changed a file last, for its row."""
    if commit is None:
        return None
    return {"title": commit.title, "date": commit.date, "href": f"{page}/commit/{commit.oid}"}


def _routes() -> Iterator[Route]:
    site = Site()
    yield Route("GET HEAD", "/static/{file}", site.page(site.static), page=True, open=True)
    yield Route("GET HEAD", "/", site.page(site.index), page=True)
    yield from signed_in.routes(site.pages, site.page)
    pages = {
        "": site.repository,
        "/versions": site.versions,
        "/tree/{revision}": site.tree,
        "/tree/{revision}/{path:rest}": site.tree,
        "/blob/{revision}/{path:rest}": site.blob,
        "/picture/{revision}/{path:rest}": site.picture,
        "/compare": site.compare,
        "/commits/{revision}": site.commits,
        "/commit/{revision}": site.commit,
        "/goto": site.goto,
    }
    for prefix, kind in (("/kernels", "kernels"), ("", "models")):
        for suffix, handler in pages.items():
            template = f"{prefix}/{{namespace}}/{{name}}{suffix}"
            yield Route("GET HEAD", template, site.page(handler), page=True, type=kind)


ROUTES = tuple(_routes())
