"""A stand-in for the Hugging Face Hub on this machine, with only the requests by which
`huggingface_hub` uploads a model (Git LFS). It keeps repositories in memory and checks uploads."""

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LARGE = (".safetensors",)
"""Suffixes of the files that go by Git LFS."""
_CREATE = "/api/repos/create"
_CHECK = "/api/validate-yaml"
_MODEL = re.compile(
    r"/api/models/(?P<repo>[^/]+/[^/]+)(/(?P<verb>preupload|commit|revision)/main)?"
)
_BATCH = re.compile(r"/(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch")
_OBJECT = re.compile(r"/objects/(?P<oid>[0-9a-f]{64})")


@dataclass
class Repo:
    """A model's repository: its files and its number of commits."""

    private: bool
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    commits: int = 0


class Hub:
    """The repositories and objects of the stand-in. `tokens` has the owner of each token. While
    `hold` is set, only the start of an uploaded object is read; then `held` is set."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self.tokens = dict(tokens)
        self.repos: dict[str, Repo] = {}
        self.objects: dict[str, bytes] = {}
        self.sent: list[str] = []
        self.hold, self.held, self.go_on = (threading.Event() for _ in range(3))
        self.url = ""

    def answer(self, method: str, path: str, owner: str | None, body: bytes) -> tuple[int, Any]:
        """Return the status and the document of an answer."""
        if path == _CHECK:
            return 200, {"errors": [], "warnings": []}
        if owner is None:
            return 401, {"error": "Invalid username or password."}
        if path == _CREATE:
            return self._create(owner, json.loads(body))
        if match := _BATCH.fullmatch(path):
            return 200, {"objects": [self._action(entry) for entry in json.loads(body)["objects"]]}
        if match := _MODEL.fullmatch(path):
            return self._of_repo(owner, match["repo"], match["verb"], body)
        return 404, {"error": f"the stand-in has no {method} {path}"}

    def _of_repo(self, owner: str, name: str, verb: str | None, body: bytes) -> tuple[int, Any]:
        repo = self.repos.get(name)
        if repo is None:
            return 404, {"error": "Repository not found"}
        if name.partition("/")[0] != owner:
            return 403, {"error": "You don't have the rights to write to this repository"}
        if verb == "preupload":
            return 200, {
                "files": [_mode(repo, entry["path"]) for entry in json.loads(body)["files"]]
            }
        if verb == "commit":
            return self._commit(name, repo, body)
        return 200, {"id": name, "sha": f"{repo.commits:040x}", "siblings": []}

    def _create(self, owner: str, request: Mapping[str, Any]) -> tuple[int, Any]:
        name = f"{request['organization'] or owner}/{request['name']}"
        if name in self.repos:
            return 409, {
                "error": "You already created this model repo",
                "url": f"{self.url}/{name}",
            }
        if name.partition("/")[0] != owner:
            return 403, {"error": f"You don't have the rights to create a model under {name}"}
        private = request.get("visibility") == "private" or request.get("private") is True
        self.repos[name] = Repo(private)
        return 200, {"url": f"{self.url}/{name}", "name": name}

    def _action(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        action = {"oid": entry["oid"], "size": entry["size"]}
        if entry["oid"] in self.objects:
            return action
        return {**action, "actions": {"upload": {"href": f"{self.url}/objects/{entry['oid']}"}}}

    def _commit(self, name: str, repo: Repo, body: bytes) -> tuple[int, Any]:
        files = dict(repo.files)
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                if value["oid"] not in self.objects:
                    return 400, {"error": f"no object for {value['path']}"}
                files[value["path"]] = self.objects[value["oid"]]
        repo.files, repo.commits = files, repo.commits + 1
        commit = f"{repo.commits:040x}"
        return 200, {"commitOid": commit, "commitUrl": f"{self.url}/{name}/commit/{commit}"}

    def take(self, oid: str, length: int, body: Any) -> int:
        """Receive an object. Return the status."""
        if self.hold.is_set():
            body.read(min(length, 1000))
            self.held.set()
            self.go_on.wait()
            return 500
        data = body.read(length)
        if len(data) < length or hashlib.sha256(data).hexdigest() != oid:
            return 400
        self.objects[oid] = data
        self.sent.append(oid)
        return 200


def _mode(repo: Repo, path: str) -> dict[str, Any]:
    large = path.endswith(LARGE)
    mode: dict[str, Any] = {"path": path, "shouldIgnore": False}
    mode["uploadMode"] = "lfs" if large else "regular"
    if (data := repo.files.get(path)) is not None:
        header = b"" if large else f"blob {len(data)}\0".encode()
        kind = hashlib.sha256 if large else hashlib.sha1
        mode["oid"] = kind(header + data).hexdigest()
    return mode


@contextlib.contextmanager
def serve(hub: Hub) -> Iterator[None]:
    """Serve the stand-in on a free port of the loopback interface."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            del format, args

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _reply(self, status: int, document: Any) -> None:
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _answer(self) -> None:
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            path = self.path.partition("?")[0]
            owner = hub.tokens.get(token)
            self._reply(*hub.answer(self.command, path, owner, self._body()))

        do_GET = do_POST = _answer  # noqa: N815

        def do_PUT(self) -> None:
            match = _OBJECT.fullmatch(self.path.partition("?")[0])
            assert match
            status = hub.take(match["oid"], int(self.headers["Content-Length"]), self.rfile)
            self.close_connection = status != 200
            with contextlib.suppress(OSError):  # the client was killed
                self._reply(status, {})

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            hub.go_on.set()
            server.shutdown()
            thread.join()
