"""Connects an agent's MCP client to sweeper. This program copies standard input to the socket
next to this file, and the answers to standard output. `--check PROGRAM FILE...` tests the
connection, and checks that the program and the files exist."""

# This module uses only the standard library of any Python 3, because the agent's sandbox executes a
# copy.
import json
import os
import shutil
import socket
import sys
import threading
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))


def connect() -> socket.socket:
    """Connect to sweeper's socket `mcp.sock`, and return the connection."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(os.path.join(HERE, "mcp.sock"))
    return connection


def copy() -> None:
    """Copy standard input to sweeper's socket, and the answers to standard output, until sweeper
    closes the connection."""
    connection = connect()

    def send() -> None:
        while True:
            data = os.read(0, 65536)
            if not data:
                break
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

    threading.Thread(target=send, daemon=True).start()
    while True:
        data = connection.recv(65536)
        if not data:
            break
        while data:
            data = data[os.write(1, data) :]


def tools() -> "list[str]":
    """Return the names of the tools that sweeper offers to an MCP client."""
    with connect() as connection, connection.makefile("rw", encoding="utf-8") as stream:

        def ask(number: int, method: str, **params: object) -> "dict[str, Any]":
            message: dict[str, object] = {"jsonrpc": "2.0", "id": number, "method": method}
            message["params"] = params
            stream.write(json.dumps(message) + "\n")
            stream.flush()
            for line in stream:
                answer: dict[str, Any] = json.loads(line)
                if answer.get("id") == number:
                    return answer["result"]
            raise EOFError("sweeper closed the connection")

        client = {"name": "sweeper-check", "version": "1"}
        ask(1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
        stream.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        return [tool["name"] for tool in ask(2, "tools/list")["tools"]]


def check(program: str, files: "list[str]") -> int:
    """Print the tools, the current folder, and which of `program` and `files` are missing. Return 1
    if anything is missing, else 0."""
    missing = [path for path in files if not os.path.isfile(path)]
    if shutil.which(program) is None:
        missing.append(program)
    about = {"tools": tools(), "missing": missing, "folder": os.getcwd()}
    print(json.dumps(about))
    return 1 if missing else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        sys.exit(check(sys.argv[2], sys.argv[3:]))
    copy()
