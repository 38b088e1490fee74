"""What stands between a Hub and its object store: it dies in the middle of requests, and comes back with all data.

The store of the tests keeps its objects in memory, and would lose them. To whoever asks, connections that break in the
middle of a request, and are refused for a while, are what the death of a store's process is.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

_PIECE = 1 << 16


class StoreFront:
    """Forwards connections to a store, on a port of its own that stays the same."""

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        self._store = (str(parts.hostname), int(parts.port or 80))
        self._guard = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listening: socket.socket | None = None
        self._port = 0
        self.start()

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Take connections again."""
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self._port))
        listening.listen(128)
        self._port = listening.getsockname()[1]
        self._listening = listening
        threading.Thread(target=self._accept, args=(listening,), daemon=True).start()

    def kill(self) -> None:
        """Break every connection, wherever it is, and refuse new ones."""
        if self._listening is not None:
            with suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
            self._listening = None
        with self._guard:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                client, _ = listening.accept()
                store = socket.create_connection(self._store)
            except OSError:
                return
            with self._guard:
                self._open |= {client, store}
                alive = self._listening is listening
            for one, other in ((client, store), (store, client)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()
            if not alive:
                for connection in (client, store):
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(_PIECE):
                other.sendall(data)
        for connection in (one, other):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        with self._guard:
            self._open -= {one, other}
