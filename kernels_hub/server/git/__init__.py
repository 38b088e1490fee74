"""Where the git data of a Hub lies: objects and refs, repository by repository.

    seam          what every place does, locks included
    folder        bare repositories below the root: the default
    pack_files    packs in a folder
    packed_refs   refs in a file

The rest of the server asks `seam.GitStore`, whichever it is.
"""
