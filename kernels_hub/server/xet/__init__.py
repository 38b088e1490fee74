"""Uploads by the Xet protocol: what `hf_xet` sends is taken in and becomes plain LFS objects.

A client with `hf_xet` sends every file that the server calls LFS as *xorbs* (packs of compressed
chunks) and then a *shard* (which chunks make up which file). Nothing here serves a download.

    hashing.py   the protocol's BLAKE3 hashes
    xorb.py      xorb -> chunks, each checked
    shard.py     shard -> files, each a list of chunk ranges
    spool.py     xorbs on disk between the two, and the sweep
    rebuild.py   a file from its chunk ranges, checked by sha256
    routes.py    the HTTP side

Source: the Xet protocol specification, https://huggingface.co/docs/xet.
"""
