"""The rows of a Hub: accounts, tokens, repositories, large files, release and audit log.

seam.py         what every database does, its rows and its errors
schema.py       tables, indexes and triggers, said once for all of them
sqlite.py       one file below the root, the default
postgresql.py   a PostgreSQL server; dialect.py has what it spells otherwise, connections.py its connections
address.py      addresses of databases, without their passwords
transfer.py     every row from one database to another, compared
"""

from kernels_hub.server.database.seam import (
    Database,
    DatabaseError,
    DatabaseFullError,
    Row,
    RowConflictError,
    UnavailableError,
)

__all__ = ["Database", "DatabaseError", "DatabaseFullError", "Row", "RowConflictError", "UnavailableError"]
