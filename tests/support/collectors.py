"""An OpenTelemetry collector on loopback that keeps all requests."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


@contextmanager
def collecting() -> Iterator[Any]:
    """Yield a server with `url`, `taken` (path, headers, body of each request) and `code`, its
    answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.taken.append((f"POST {self.path}", dict(self.headers), json.loads(body)))
            self.send_response(server.code)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server: Any = HTTPServer(("127.0.0.1", 0), Handler)
    server.taken, server.code = [], 200
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
