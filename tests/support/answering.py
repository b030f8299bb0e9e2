"""A web server on loopback that answers each GET with the result of a test's function."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def answering(
    answer: Callable[[str], tuple[int, object]], authorizations: set[str | None] | None = None
) -> Iterator[str]:
    """Serve `answer(path)`, a status and a document or bytes; yields the server's address.
    Authorization headers are added to `authorizations`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if authorizations is not None:
                authorizations.add(self.headers.get("Authorization"))
            status, body = answer(self.path)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
