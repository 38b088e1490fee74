"""The self-hosted Hub, which unmodified Hub clients use through HF_ENDPOINT.

    refusal, paths          what is refused, and how it is said; names and paths
    durable, layout         files that survive a crash; where things lie under the root
    database/               rows, in SQLite or PostgreSQL; migration moves them, and row_moves takes servers along
    accounts                users, organisations, tokens; sessions of the web pages
    repositories, access    repositories as rows; who may do what
    packs, refs, listing    git: objects, refs, what a commit holds; git/ has the places that they lie in
    search, facets          lists: found, filtered, sorted; download_counts
    mirror                  a read-only Hub that follows another, and what that one answers it
    store, lfs, commit      changes: commits, branches, large files
    api_*, lfs_api, downloads, app    the HTTP side

Order of every change: objects first, flushed to disk; then one atomic step that makes it visible.
"""
