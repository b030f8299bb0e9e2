"""A launcher that is killed and started again tells of its sweep's end once, with the verdict, and
what it tells survives a receiver that refuses at first."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

Shell = Any


class Receiver:
    """Takes messages, but the first with a 500."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.refused = 0
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if receiver.refused:
                    receiver.taken.append(body)
                self.send_response(200 if receiver.refused else 500)
                receiver.refused += 1
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/a-secret-path"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_an_end_is_told_once_whoever_was_killed(
    shells: Any, tmp_path: Path, receiver: Receiver
) -> None:
    shell: Shell = shells.Shell(tmp_path, "local")
    shell.environment["HOOK"] = receiver.url
    with (tmp_path / "grid.yaml").open("a") as grid:
        grid.write("notify: {on: [end], webhook: $HOOK}\n")
    launcher = shell.start("launch", "grid.yaml", "--wait", "--plain")
    shell.until(lambda: len(shell.executed()) >= 2)
    launcher.kill()
    launcher.communicate()
    said = shell.run("launch", "grid.yaml", "--wait", "--plain")
    (line,) = [line for line in said.splitlines() if line.startswith("toys: ") and "[" in line]
    shell.until(lambda: receiver.taken)
    shell.run("launch", "grid.yaml", "--wait", "--plain")  # there is nothing to do: no other end
    shell.run("notify", "toys")
    (told,) = receiver.taken
    assert told["kind"] == "end" and "6 succeeded" in told["text"] and told["verdict"]
    assert line == f"toys: {told['verdict']}"  # with which a launch ends
    kept = b"".join(path.read_bytes() for path in (tmp_path / "sweeps").rglob("*.json"))
    assert b"a-secret-path" not in kept
