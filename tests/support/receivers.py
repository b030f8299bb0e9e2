"""Receivers of notifications: a web server and a mail server on this machine, which can fail at
first."""

import asyncio
import http.server
import json
import ssl
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope

SECRET = "s3cret-in-the-address"
PASSWORD = "the-password-of-a-person"


class Receiver:
    """A web server that receives messages. It first answers with the codes in `faults`; 0: it
    closes the connection without an answer. While `hold` is cleared it does not answer; `asked`
    counts the requests."""

    def __init__(self) -> None:
        self.faults: list[int] = []
        self.taken: list[dict[str, Any]] = []
        self.asked = 0
        self.hold = threading.Event()
        self.hold.set()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.asked += 1
                receiver.hold.wait()
                code = receiver.faults.pop(0) if receiver.faults else 200
                if code == 0:
                    self.close_connection = True
                    return
                if code == 200:
                    receiver.taken.append(json.loads(body))
                self.send_response(code)
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/{SECRET}"


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a web server for messages during the block."""
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield made
    finally:
        made.hold.set()
        made.server.shutdown()
        thread.join()
        made.server.server_close()


class Mailbox:
    """A mail server: `taken` has the mails, `users` the login for each (None: no login). It
    first answers a mail with the codes in `faults`; 0: it closes the connection."""

    def __init__(self) -> None:
        self.faults: list[int] = []
        self.taken: list[Message] = []
        self.users: list[str | None] = []
        self.address = ""

    async def handle_DATA(  # noqa: N802 - the library's name
        self, server: Any, session: Any, envelope: Envelope
    ) -> str:
        code = self.faults.pop(0) if self.faults else 250
        if code == 0:
            server.transport.abort()
        if code == 250:
            self.taken.append(message_from_bytes(envelope.original_content or b""))
            self.users.append(session.auth_data)
        return f"{code} so be it"


def _login(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
    right = data.login == b"me" and data.password == PASSWORD.encode()
    return AuthResult(success=right, auth_data=data.login.decode(), handled=right)


@contextmanager
def mailbox(tls: str, certificate: Path | None = None, *, login: bool = False) -> Iterator[Mailbox]:
    """Run a mail server during the block. `tls`: `none`, `starttls` or `ssl`, which need a
    `certificate`; `login`: it only accepts mail after a login as `me` with the password."""
    made = Mailbox()
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    loop = asyncio.new_event_loop()

    def protocol() -> SMTP:
        with warnings.catch_warnings():  # aiosmtpd does not see the TLS around the connection
            warnings.simplefilter("ignore", UserWarning)
            return SMTP(
                made,
                hostname="here",
                loop=loop,
                tls_context=context if tls == "starttls" else None,
                require_starttls=tls == "starttls",
                authenticator=_login if login else None,
                auth_required=login,
                auth_require_tls=tls == "starttls",
            )

    outer = context if tls == "ssl" else None
    server = loop.run_until_complete(loop.create_server(protocol, "127.0.0.1", 0, ssl=outer))
    made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield made
    finally:
        asyncio.run_coroutine_threadsafe(_close(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _close(server: asyncio.Server) -> None:
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
