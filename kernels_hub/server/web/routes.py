"""The pages of the Hub. They show what an anonymous visitor may download, and nothing else.

    GET /                                   repositories, newest first; ?q= searches
    GET /[kernels/]<org>/<name>             a repository; ?revision=
    GET …/tree/<revision>[/<path>]          a folder
    GET …/blob/<revision>/<path>            a file's source
    GET …/commits/<revision>                history
    GET …/commit/<revision>                 leads to what a commit changed
    GET …/compare                           two versions; ?from= &to= &path= &view=
    GET …/goto                              where the choice of a version leads

A revision is one segment: its slashes are quoted.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from threading import Lock
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from kernels_hub.server.call import REPOSITORY_TYPES, Call, Route
from kernels_hub.server.hub import Hub
from kernels_hub.server.refusal import Refusal, entry_not_found, header_text, repository_not_found
from kernels_hub.server.repositories import Repository
from kernels_hub.server.search import Listed, describe
from kernels_hub.server.store import DEFAULT_BRANCH
from kernels_hub.server.web.card import CardPlace, render_card
from kernels_hub.server.web.comparison import compare_revisions, text_of
from kernels_hub.server.web.contents import Contents, Facts, Revision, is_release
from kernels_hub.server.web.pages import Pages, quoted, redirect, with_query
from kernels_hub.server.web.source import LINES_SHOWN, SHOWN_LIMIT, highlight_file

_PAGE_ROWS = 30
_QUERY_LENGTH = 100
_WORDS = 8
_FACTS_KEPT = 4096
_VERSIONS = 200
_TREE_ROWS = 2000
_COMMITS = 50
_README = "README.md"

Handler = Callable[[Call], Response]


@dataclass(frozen=True, slots=True)
class RepositoryRow:
    """A repository in the list."""

    namespace: str
    name: str
    kind: str
    href: str
    summary: str | None
    version: str | None
    layers: int
    variants: int
    licence: str | None
    updated: str | None


class Site:
    """The handlers, with what they keep between requests."""

    def __init__(self) -> None:
        self._pages = Pages()
        self._facts: OrderedDict[tuple[str, str], Facts] = OrderedDict()
        self._guard = Lock()

    def page(self, handler: Handler) -> Handler:
        """A handler whose refusals are pages too. What must not be seen is not found."""

        def answer(call: Call) -> Response:
            try:
                return handler(call)
            except Refusal as refusal:
                try:
                    base = call.base
                except Refusal:
                    base = ""  # the Host header itself is wrong
                status = 404 if refusal.status == 401 else refusal.status
                heading = "Not found" if status == 404 else "This cannot be shown"
                message = "There is no such public page here." if status == 404 else refusal.message
                response = self._pages.render("refused.html", base, status, heading=heading, message=message)
                response.headers["X-Error-Message"] = header_text(message)
                return response

        return answer

    def static(self, call: Call) -> Response:
        """The style sheet and the icon."""
        response = self._pages.static(call.params["file"], call.query("v"))
        if response is None:
            raise entry_not_found(call.params["file"])
        return response

    # -- pages

    def index(self, call: Call) -> Response:
        """Every public repository."""
        query = " ".join(call.query("q").split())[:_QUERY_LENGTH]
        words, wanted = query.lower().split()[:_WORDS], call.number("page", 1, 10**6)
        found = call.hub.search.public(words, (wanted - 1) * _PAGE_ROWS, _PAGE_ROWS)
        pages = max(1, -(-found.total // _PAGE_ROWS))
        page = min(wanted, pages)
        if page != wanted:
            found = call.hub.search.public(words, (page - 1) * _PAGE_ROWS, _PAGE_ROWS)
        return self._pages.render(
            "repositories.html",
            call.base,
            query=query,
            total=found.total,
            rows=[_row(call.hub, listed) for listed in found.rows],
            page=page,
            pages=pages,
        )

    def repository(self, call: Call) -> Response:
        """The card of a version, and what is in it."""
        contents = _contents(call)
        revision = contents.revision(call.query("revision") or contents.default)
        page, facts = contents.repository.page, self._facts_of(contents, revision.commit)
        card = self._card(contents, revision)
        tags, branches = contents.tags[:_VERSIONS], contents.branches[:_VERSIONS]
        versions = [
            {
                "name": release.name,
                "date": release.date,
                "yanked": release.yanked,
                "changed": contents.changed.get(release.name),
                "href": with_query(page, revision=release.name),
                "previous": previous,
                "compare": with_query(f"{page}/compare", **{"from": previous, "to": release.name}),
            }
            for release, previous in zip_longest(map(contents.revision, tags), tags[1:])
        ]
        variants = [
            {"href": f"{page}/tree/{quoted(revision.name)}/build/{quote(variant.name)}", "facts": variant}
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
            versions=versions,
            removed=[item for item in contents.changed.items() if item[0] not in contents.tags][:_VERSIONS],
            branches=[{"name": name, "href": with_query(page, revision=name)} for name in branches],
            more=len(contents.tags) - len(tags) + len(contents.branches) - len(branches),
            variants=variants,
            usage=_usage(contents.repository, revision, facts),
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
        place = CardPlace(f"{page}/blob/{quoted(name)}", f"{page}/resolve/{quoted(name)}")
        return render_card(text, place)

    def tree(self, call: Call) -> Response:
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
        entries = [
            {
                "name": entry.path[len(prefix) :],
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

    def blob(self, call: Call) -> Response:
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

    def compare(self, call: Call) -> Response:
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

    def commits(self, call: Call) -> Response:
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

    def commit(self, call: Call) -> Response:
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

    def goto(self, call: Call) -> Response:
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
        self, call: Call, contents: Contents, template: str, tab: str, *, revision: Revision, **values: Any
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
            "href": repository.page,
            "summary": facts.summary,
        }
        rev = {
            "name": revision.name,
            "commit": revision.commit,
            "date": revision.date,
            "yanked": revision.yanked,
            "quoted": quoted(revision.name),
            "is_default": revision.name == contents.default,
        }
        return self._pages.render(
            template,
            call.base,
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


def _row(hub: Hub, listed: Listed) -> RepositoryRow:
    repository = listed.repository
    described = listed.described or describe(hub.store, repository)[0]
    return RepositoryRow(
        repository.namespace,
        repository.name,
        repository.type,
        repository.page,
        described.summary,
        described.version,
        described.layers,
        described.variants,
        described.licence,
        described.updated,
    )


def _contents(call: Call) -> Contents:
    """The repository of the path, if everybody may download it."""
    params = call.params
    kind = REPOSITORY_TYPES[params["type"]]
    repository = call.hub.repositories.find(kind, params["namespace"], params["name"])
    if repository is None or repository.private or repository.gated:
        raise repository_not_found(anonymous=False)
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


def _usage(repository: Repository, revision: Revision, facts: Facts) -> str | None:
    """Lines of Python that load this version."""
    if not facts.variants:
        return None
    name, layers = revision.name, [layer.name for layer in facts.layers if layer.name.isidentifier()][:1]
    wanted = ("version", f"=={name[1:]}") if is_release(name) else ("revision", name)
    arguments = [
        json.dumps(repository.full_name),
        *(f"layer_name={json.dumps(layer)}" for layer in layers),
        f"{wanted[0]}={json.dumps(wanted[1])}",
    ]
    function = "LayerRepository" if layers else "get_kernel"
    inside = "".join(f"    {argument},\n" for argument in arguments)
    return f"from kernels_hub import {function}\n\n{function}(\n{inside})"


def _routes() -> Iterator[Route]:
    site = Site()
    yield Route("GET HEAD", "/static/{file}", site.page(site.static))
    yield Route("GET HEAD", "/", site.page(site.index))
    pages = {
        "": site.repository,
        "/tree/{revision}": site.tree,
        "/tree/{revision}/{path:rest}": site.tree,
        "/blob/{revision}/{path:rest}": site.blob,
        "/compare": site.compare,
        "/commits/{revision}": site.commits,
        "/commit/{revision}": site.commit,
        "/goto": site.goto,
    }
    for prefix, kind in (("/kernels", "kernels"), ("", "models")):
        for suffix, handler in pages.items():
            template = f"{prefix}/{{namespace}}/{{name}}{suffix}"
            yield Route("GET HEAD", template, site.page(handler), type=kind)


ROUTES = tuple(_routes())
