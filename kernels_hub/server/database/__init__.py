"""The rows of a Hub: accounts, tokens, repositories, large files, release and audit log.

    seam.py         what every database does, its rows and its errors
    schema.py       tables, indexes and triggers, said once for all of them
    sqlite.py       one file below the root, the default
    postgresql.py   a PostgreSQL server: what it spells otherwise in dialect.py, its connections in connections.py,
                    what fsck asks of it in postgresql_check.py
    address.py      addresses of databases, without their passwords
    opening.py      the database of a root, and no other
    transfer.py     every row from one database to another, compared
    online_copy.py  the same in steps, while others write; what changes meanwhile is noted by change_log.py
    movable.py      a database that another one takes the place of, while threads use it

The rest of the server asks `seam.Database`, whichever it is.
"""

from kernels_hub.server.database.seam import (
    Containing,
    Database,
    DatabaseError,
    DatabaseFullError,
    Query,
    Row,
    RowConflictError,
    UnavailableError,
)

__all__ = [
    "Containing",
    "Database",
    "DatabaseError",
    "DatabaseFullError",
    "Query",
    "Row",
    "RowConflictError",
    "UnavailableError",
]
