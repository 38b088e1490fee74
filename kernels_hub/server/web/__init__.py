"""Web pages of the Hub: repositories, their versions, cards, source and diffs, and signing in.

HTML from jinja2 templates and one style sheet; nothing is loaded from elsewhere and nothing needs
JavaScript. Everything that a repository says is hostile until it is escaped.

    card.py       README.md -> HTML, sanitised
    source.py     a file -> lines of highlighted HTML
    diff.py       two versions of a file -> changed lines
    comparison.py two versions of a repository -> what changed
    contents.py   what a repository is, read from its tree
    pages.py      templates and headers
    routes.py     the pages
"""
