"""Where the content of large files lies: the protocol of an object store, and its two implementations.

    store       what a store can do, and the names of objects
    files       beside the repositories, on the root's disk: the default
    address     `s3://bucket/prefix?endpoint=…`: an S3-compatible store
    answers     what becomes of a store's errors
    s3          objects in a bucket
    transfers   presigned addresses, by which clients send to a bucket and load from it
    connection  boto3, imported when a store is used
    opening     the store that a root remembers
    migration   moves every object from one store to another

A repository has a large file when the database has its row (`lfs.py`); a store holds content, and knows nothing of
who may see it.
"""
