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
        with self._guard:
            listening, self._listening = self._listening, None
            if listening is not None:
                with suppress(OSError):
                    listening.shutdown(socket.SHUT_RDWR)
                listening.close()
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _accept(self, listening: socket.socket) -> None:
        with listening:
            while self._listening is listening:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=self._serve, args=(client, listening), daemon=True).start()

    def _serve(self, client: socket.socket, listening: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._store) as store:
            with self._guard:
                if self._listening is not listening:
                    return
                self._open |= {client, store}
            answers = threading.Thread(target=_pump, args=(store, client), daemon=True)
            answers.start()
            _pump(client, store)
            answers.join()
            with self._guard:
                self._open -= {client, store}


def _pump(one: socket.socket, other: socket.socket) -> None:
    """Send on what comes, until one of the two ends; then both do."""
    with suppress(OSError):
        while data := one.recv(_PIECE):
            other.sendall(data)
    for connection in (one, other):
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
