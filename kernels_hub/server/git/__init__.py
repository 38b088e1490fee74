"""Where the git data of a Hub lies: objects and refs, repository by repository.

    seam          what every place does, locks included
    folder        bare repositories below the root: the default
    pack_files    packs in a folder
    packed_refs   refs in a file
    stored        an object store and a database, shared by servers with roots of their own
    stored_content, rows, pack_bucket, pack_cache
                  its parts: a repository's packs and refs; rows; objects; local copies
    opening       the place that a root remembers; how a new root joins a Hub
    migration     moves all of it from one place to the other

The rest of the server asks `seam.GitStore`, whichever it is.
"""
