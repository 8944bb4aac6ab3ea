"""Servers that tests of the remote cache start: a real redis, HTTP over a folder, and two that misbehave."""

from __future__ import annotations

import contextlib
import functools
import http.server
import importlib.util
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

REDIS = shutil.which("redis-server") if importlib.util.find_spec("redis") else None


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The URL of a redis of its own, and its process."""
    assert REDIS is not None
    port = free_port()
    command = [REDIS, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", *options]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(500):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, "redis-server ended"
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0", process
    finally:
        process.kill()
        process.wait()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@contextlib.contextmanager
def http_server(folder: Path) -> Iterator[str]:
    """The URL of that folder's files."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def raw_server(answer: Callable[[socket.socket], None]) -> Iterator[tuple[int, list[float]]]:
    """The port of a server that answers each connection by `answer(connection)`, and when each came."""
    times: list[float] = []
    connections: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            times.append(time.monotonic())
            connections.append(connection)
            with contextlib.suppress(OSError):
                answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(listening.getsockname()[1]), times
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()
    for connection in connections:
        connection.close()


def never(connection: socket.socket) -> None:
    """Say nothing, and keep the connection."""


def half(connection: socket.socket) -> None:
    """The first half of an answer, to a client of redis or of HTTP, then the end."""
    request = connection.recv(1 << 16)
    if request.startswith(b"GET "):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nDYNAJITR")
    else:
        connection.sendall(b"$1000\r\nDYNAJITR")
    connection.close()


def garbage(connection: socket.socket) -> None:
    """No protocol at all."""
    connection.recv(1 << 16)
    connection.sendall(b"\x00\xff\xfe none\r\n\r\n" * 50)
    connection.close()
