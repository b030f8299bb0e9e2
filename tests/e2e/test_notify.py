"""The end of a sweep is notified once despite kills. Broken receivers do not affect the sweep."""

import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.e2e

Shell = Any


def test_an_end_is_notified_once_despite_kills(shell: Shell, tmp_path: Path, receiver: Any) -> None:
    shell.environment["HOOK"] = receiver.url
    receiver.faults = [500]
    with (tmp_path / "grid.yaml").open("a") as grid:
        grid.write("notify: {on: [end], webhook: $HOOK}\n")
    launcher = shell.start("launch", "grid.yaml", "--wait", "--plain")
    shell.until(lambda: len(shell.executed()) >= 2)
    launcher.kill()
    launcher.communicate()
    output = shell.run("launch", "grid.yaml", "--wait", "--plain")
    (line,) = [line for line in output.splitlines() if line.startswith("toys: ") and "[" in line]
    shell.until(lambda: receiver.taken)
    shell.run("launch", "grid.yaml", "--wait", "--plain")  # nothing to do, so no second message
    shell.run("doctor", "notify", "toys")
    (message,) = receiver.taken
    assert message["kind"] == "end" and "6 succeeded" in message["text"] and message["verdict"]
    assert line == f"toys: {message['verdict']}"  # the launch ends with this line
    contents = b"".join(path.read_bytes() for path in (tmp_path / "sweeps").rglob("*.json"))
    assert b"s3cret-in-the-address" not in contents


def test_unreachable_receivers_do_not_harm_the_sweep(
    shell: Shell, tmp_path: Path, receiver: Any
) -> None:
    with socket.socket() as nobody:  # its port is bound, but not listening
        nobody.bind(("127.0.0.1", 0))
        away = f"127.0.0.1:{nobody.getsockname()[1]}"
        shell.environment |= {"HOOK": receiver.url, "SLACK": f"http://{away}/x"}
        with (tmp_path / "grid.yaml").open("a") as grid:
            grid.write(
                "notify:\n  webhook: $HOOK\n  slack: $SLACK\n"
                f"  email: {{to: [a@b], sender: a@b, server: '{away}', tls: none}}\n"
            )
        receiver.hold.clear()  # requests wait for a reply
        try:
            shell.run("launch", "grid.yaml", "--wait", "--plain")  # exit code 0
            shell.until_states({"succeeded": 6})
            assert not receiver.taken  # the launch has ended, and no message has arrived
            assert sum(shell.executed().values()) == 6 * 5  # each step of each run, once
            shell.until(lambda: receiver.asked)
            receiver.hold.set()
            shell.until(lambda: receiver.taken)
            arrived = {"webhook": True, "slack": False, "email": False}
            shell.until(lambda: _delivered(shell) == arrived)
        finally:
            _end_senders(tmp_path)
    assert [message["kind"] for message in receiver.taken] == ["end"]


def _delivered(shell: Any) -> dict[str, bool | None]:
    messages = json.loads(shell.run("doctor", "notify", "toys", "--json"))["messages"]
    return {message["receiver"]: message["delivered"] for message in messages}


def _end_senders(folder: Path) -> None:
    """Kill the processes that keep sending messages of a sweep in this folder."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "notify" in words and any(str(folder) in word for word in words):
            with suppress(psutil.NoSuchProcess):  # it has just ended
                process.kill()
                process.wait()
