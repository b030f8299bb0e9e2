"""A stand-in for Modal: its service on loopback with the generated classes of its client, as far
as sweeper needs it. Sandboxes are processes of this machine.

Nothing here was compared with Modal itself: it is written from the behaviour of its client and from
its documentation.

There are an app, images and secrets. Sandboxes have names that are unique while they run, tags, a
time limit, and may be terminated; the command router starts commands in them. Requests without a
token, for a missing environment, or with an invalid tag are refused.

    with Modal(folder) as modal:          # modal.environment_of_launchers configures clients
        modal.faults.append(Fault("SandboxListV2", "UNAVAILABLE", times=3))
        modal.silent = True               # nothing answers
        modal.terminate(sandbox)          # its machine is taken away
"""

import asyncio
import base64
import contextlib
import functools
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from grpclib import GRPCError, Status
from grpclib.server import Server
from modal._utils.name_utils import is_valid_tag
from modal_proto import api_grpc, api_pb2, task_command_router_grpc, task_command_router_pb2
from support.stand_in import kill, node_variables, start, take

TOKEN = "as-a-token-of-the-stand-in"
_CONTROL_SECONDS = 0.05


@dataclass
class Fault:
    """An error in the next `times` requests of a method. `after`: the request still takes
    effect."""

    method: str
    status: str
    times: int = 1
    after: bool = False


@dataclass
class Sandbox:
    request: Any
    process: subprocess.Popen[bytes] | None
    printed: Path
    begun: float = field(default_factory=time.time)
    result: Any = field(default_factory=api_pb2.GenericResult)
    commands: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def definition(self) -> Any:
        return self.request.definition

    @property
    def tags(self) -> dict[str, str]:
        return {tag.tag_name: tag.tag_value for tag in self.request.tags}


class _Server(Server):
    """A server that closes its connections when it ends."""

    def __init__(self, handlers: Any) -> None:
        super().__init__(handlers)
        self._connections: list[Any] = []

    def _protocol_factory(self) -> Any:
        made = super()._protocol_factory()
        self._connections.append(made)
        return made

    @property
    def port(self) -> int:
        sockets: Any = self._server.sockets  # type: ignore[union-attr]
        return int(sockets[0].getsockname()[1])

    async def hang_up(self) -> None:
        for protocol in self._connections:
            if hasattr(protocol, "connection"):
                protocol.connection.close()
        await asyncio.sleep(0.1)  # the event loop closes them


class Modal:
    """One workspace with one environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        self.sandboxes: dict[str, Sandbox] = {}
        self.requests: list[str] = []
        self.asked_for_tasks: list[str] = []  # by their sandboxes
        self.url = ""
        self._server: _Server | None = None
        self._over = threading.Event()
        self.recover()

    def recover(self) -> None:
        """Restore the initial state; running sandboxes continue."""
        with self.lock:
            self.faults: list[Fault] = []
            self.silent = self.hangs = False
            self.denied: set[str] = set()
            self.images = {"sweeper"}
            self.secrets: dict[str, dict[str, str]] = {}
            self.most: int | None = None  # sandboxes at once
            self.regions = {"us", "eu"}
            self.most_cpus = 64.0
            self.environment: dict[str, str] = {}  # variables that machines give to containers
            self.starting = False  # new sandboxes have no machine yet
            self.lags = False  # listings do not show running sandboxes yet
            self.requests.clear()
            self.asked_for_tasks.clear()

    def __enter__(self) -> "Modal":
        started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._threads = [
            threading.Thread(target=self._serve, args=(started,)),
            threading.Thread(target=self._control),
        ]
        for thread in self._threads:
            thread.start()
        started.wait()
        self.environment_of_launchers = {
            "MODAL_SERVER_URL": self.url,
            "MODAL_TOKEN_ID": "ak-of-the-stand-in",
            "MODAL_TOKEN_SECRET": TOKEN,
            "MODAL_CONFIG_PATH": str(self.folder / "none.toml"),
        }
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        assert self._server is not None
        self._loop.call_soon_threadsafe(self._server.close)
        for thread in self._threads:
            thread.join()
        with self.lock:
            for sandbox in self.sandboxes.values():
                self._kill(sandbox)

    def options(self, **more: Any) -> dict[str, Any]:
        """Return the backend's options for this stand-in."""
        return {"image": "sweeper", "python": sys.executable} | more

    # Faults.

    def terminate(
        self, identity: str, status: str = "TERMINATED", code: int = 0, why: str = ""
    ) -> None:
        """Kill a sandbox at once; Modal reports this status."""
        with self.lock:
            sandbox = self.sandboxes[identity]
            if not sandbox.result.status:
                self._end(sandbox, status, code)
                sandbox.result.exception = why

    def going(self) -> list[str]:
        """Return the ids of the running sandboxes."""
        with self.lock:
            return [i for i, sandbox in self.sandboxes.items() if not sandbox.result.status]

    def shown(self) -> str:
        """Return everything that Modal shows of sandboxes."""
        return "\n".join(str(sandbox.request) for sandbox in self.sandboxes.values())

    # Internals.

    def _serve(self, started: threading.Event) -> None:
        async def main() -> None:
            bases = api_grpc.ModalClientBase, task_command_router_grpc.TaskCommandRouterBase
            server = _Server([_servicer(base, self) for base in bases])
            await server.start("127.0.0.1", 0)
            self.url, self._server = f"http://127.0.0.1:{server.port}", server
            started.set()
            await server.wait_closed()
            await server.hang_up()

        with contextlib.closing(self._loop):
            self._loop.run_until_complete(main())

    async def answer(self, method: str, request: Any, metadata: Any) -> Any:
        """Answer one request. Raises `GRPCError`."""
        with self.lock:
            self.requests.append(method)
            fault = take(fault for fault in self.faults if fault.method == method)
        while self.hangs and not self._over.is_set():
            await asyncio.sleep(0.05)
        if self.silent:
            raise GRPCError(Status.UNAVAILABLE, "the stand-in is silent")
        if fault is not None and not fault.after:
            raise GRPCError(Status[fault.status], "the stand-in was told to")
        if method in self.denied:
            raise GRPCError(Status.PERMISSION_DENIED, f"not allowed: {method}")
        router = method.startswith("TaskExec")  # the command router has other tokens
        if metadata.get("authorization" if router else "x-modal-token-secret") not in (
            (f"Bearer {_jwt()}",) if router else (TOKEN,)
        ):
            raise GRPCError(Status.UNAUTHENTICATED, "Token ID is malformed")
        if method == "TaskExecWait":
            return await self._wait(request)
        ask: Callable[[Any], Any] | None = getattr(self, f"_on_{method}", None)
        if ask is None:
            raise GRPCError(Status.UNIMPLEMENTED, f"the stand-in has no {method}")
        with self.lock:
            answer = ask(request)
        if fault is not None:
            raise GRPCError(Status[fault.status], "the stand-in was told to")
        return answer

    def _control(self) -> None:
        while not self._over.wait(_CONTROL_SECONDS):
            with self.lock:
                for identity in self.going():
                    sandbox = self.sandboxes[identity]
                    assert sandbox.process is not None
                    code = sandbox.process.poll()
                    if code is not None:
                        self._end(sandbox, "FAILURE" if code else "SUCCESS", code)
                    elif time.time() > sandbox.begun + sandbox.definition.timeout_secs:
                        self._end(sandbox, "TIMEOUT")

    def _end(self, sandbox: Sandbox, status: str, code: int = 0) -> None:
        self._kill(sandbox)
        value = api_pb2.GenericResult.GenericStatus.Value(f"GENERIC_STATUS_{status}")
        code = code if code >= 0 else 128 - code
        sandbox.result = api_pb2.GenericResult(status=value, exitcode=code)

    @staticmethod
    def _kill(sandbox: Sandbox) -> None:
        """Kill a sandbox, its commands, and their child processes."""
        for process in filter(None, (sandbox.process, *sandbox.commands.values())):
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()
            kill(process)
            process.wait()
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()

    def _start(
        self, sandbox: Sandbox, argv: list[str], output: Any, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        environment = node_variables() | self.environment
        for secret in sandbox.definition.secret_ids:
            environment |= self.secrets[secret.removeprefix("st-")]
        return start(argv, "/", environment, output, stdin=stdin)

    # Requests.

    def _on_ClientHello(self, request: Any) -> Any:  # noqa: N802
        return api_pb2.ClientHelloResponse()

    def _on_AuthTokenGet(self, request: Any) -> Any:  # noqa: N802
        return api_pb2.AuthTokenGetResponse(token=_jwt())

    def _on_EnvironmentGetOrCreate(self, request: Any) -> Any:  # noqa: N802
        _environment(request.deployment_name)
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
        about = api_pb2.EnvironmentMetadata(name="main", settings=settings)
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=about)

    def _on_AppGetOrCreate(self, request: Any) -> Any:  # noqa: N802
        return api_pb2.AppGetOrCreateResponse(app_id=_app(request))

    def _on_ImageGetOrCreate(self, request: Any) -> Any:  # noqa: N802
        (command,) = request.image.dockerfile_commands
        name = command.removeprefix("FROM ").partition("@")[0]
        status = "SUCCESS" if name in self.images else "FAILURE"
        value = api_pb2.GenericResult.GenericStatus.Value(f"GENERIC_STATUS_{status}")
        result = api_pb2.GenericResult(status=value, exception=f"{name}: not found")
        return api_pb2.ImageGetOrCreateResponse(image_id=f"im-{name}", result=result)

    def _on_SecretGetOrCreate(self, request: Any) -> Any:  # noqa: N802
        name = request.deployment_name
        _environment(request.environment_name)
        if name not in self.secrets:
            raise GRPCError(Status.NOT_FOUND, f"Secret '{name}' not found in environment 'main'")
        missing = [key for key in request.required_keys if key not in self.secrets[name]]
        if missing:
            raise GRPCError(Status.NOT_FOUND, f"Secret is missing key(s): {', '.join(missing)}")
        return api_pb2.SecretGetOrCreateResponse(secret_id=f"st-{name}")

    def _on_SandboxCreateV2(self, request: Any) -> Any:  # noqa: N802
        name, made = request.definition.name, request.definition
        _valid(request.tags)
        running = [self.sandboxes[identity] for identity in self.going()]
        if any(other.definition.name == name for other in running):
            raise GRPCError(Status.ALREADY_EXISTS, f"Sandbox with name '{name}' already exists")
        if self.most is not None and len(running) >= self.most:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, "Insufficient capacity to create sandbox")
        for region in made.scheduler_placement.regions:
            if region not in self.regions:
                raise GRPCError(Status.INVALID_ARGUMENT, f"Unknown region: {region}")
        if made.resources.milli_cpu > 1000 * self.most_cpus:
            raise GRPCError(Status.INVALID_ARGUMENT, "CPU request is too large")
        identity = f"sb-{uuid.uuid4().hex}"
        sandbox = Sandbox(request, None, self.folder / f"{identity}.out")
        with sandbox.printed.open("wb") as file:
            argv = list(made.entrypoint_args)
            try:
                sandbox.process = self._start(sandbox, argv, file)
            except OSError as error:
                file.write(f"exec: {error.strerror}\n".encode())
                self._end(sandbox, "FAILURE", 127)
        self.sandboxes[identity] = sandbox
        about = api_pb2.SandboxHandleMetadata(app_id=request.app_id)
        return api_pb2.SandboxCreateV2Response(
            sandbox_id=identity, task_id="" if self.starting else _task(identity), metadata=about
        )

    def _sandbox_of(self, identity: str) -> Sandbox:
        if identity not in self.sandboxes:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox {identity} not found")
        return self.sandboxes[identity]

    def _on_SandboxWaitV2(self, request: Any) -> Any:  # noqa: N802
        sandbox = self._sandbox_of(request.sandbox_id)
        about = api_pb2.SandboxHandleMetadata(app_id=sandbox.request.app_id)
        return api_pb2.SandboxWaitResponse(result=sandbox.result, metadata=about)

    def _on_SandboxListV2(self, request: Any) -> Any:  # noqa: N802
        """Return pages of at most a hundred, the newest first."""
        _valid(request.tags)
        wanted = {tag.tag_name: tag.tag_value for tag in request.tags}
        ids = [] if self.lags else reversed(self.going())
        going = [(identity, self.sandboxes[identity]) for identity in ids]
        before = request.before_timestamp or float("inf")
        infos = [
            api_pb2.SandboxInfo(
                id=identity, created_at=sandbox.begun, app_id=sandbox.request.app_id
            )
            for identity, sandbox in going
            if sandbox.begun < before
            and sandbox.request.app_id == request.app_id
            and wanted.items() <= sandbox.tags.items()
        ]
        return api_pb2.SandboxListResponse(sandboxes=infos[:100])

    def _on_SandboxGetFromNameV2(self, request: Any) -> Any:  # noqa: N802
        named = [
            (not sandbox.result.status, sandbox.begun, identity)
            for identity, sandbox in self.sandboxes.items()
            if sandbox.definition.name == request.sandbox_name
            and sandbox.request.app_id == _app(request)
            and (request.include_terminated or not sandbox.result.status)
        ]
        if not named:
            raise GRPCError(Status.NOT_FOUND, f"No sandbox named {request.sandbox_name}")
        return api_pb2.SandboxGetFromNameResponse(sandbox_id=max(named)[2])

    def _on_SandboxTagsGetV2(self, request: Any) -> Any:  # noqa: N802
        return api_pb2.SandboxTagsGetResponse(
            tags=self._sandbox_of(request.sandbox_id).request.tags
        )

    def _on_SandboxGetTaskIdV2(self, request: Any) -> Any:  # noqa: N802
        self._sandbox_of(request.sandbox_id)
        self.asked_for_tasks.append(request.sandbox_id)
        task = "" if self.starting else _task(request.sandbox_id)
        return api_pb2.SandboxGetTaskIdResponse(task_id=task)

    def _on_SandboxGetCommandRouterAccess(self, request: Any) -> Any:  # noqa: N802
        identity = request.sandbox_id or _sandbox(request.task_id)
        if self._sandbox_of(identity).result.status:
            raise GRPCError(Status.NOT_FOUND, "the sandbox has ended")
        answer = api_pb2.SandboxGetCommandRouterAccessResponse
        return answer(jwt=_jwt(), url=self.url)

    def _on_TaskExecStart(self, request: Any) -> Any:  # noqa: N802
        sandbox = self._sandbox_of(_sandbox(request.task_id))
        if sandbox.result.status:
            raise GRPCError(Status.NOT_FOUND, "the sandbox has ended")
        with self._output(request.exec_id).open("wb") as file:
            argv = list(request.command_args)
            command = self._start(sandbox, argv, file, subprocess.PIPE)
        sandbox.commands[request.exec_id] = command
        return task_command_router_pb2.TaskExecStartResponse()

    def _output(self, command: str) -> Path:
        return self.folder / f"{command}.out"

    def _on_TaskExecStdinWrite(self, request: Any) -> Any:  # noqa: N802
        stdin = self._sandbox_of(_sandbox(request.task_id)).commands[request.exec_id].stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            stdin.write(request.data)
            stdin.flush()
            if request.eof:
                stdin.close()
        return task_command_router_pb2.TaskExecStdinWriteResponse()

    async def read_output(self, request: Any, send: Callable[[Any], Any]) -> None:
        """Send what a command prints (both streams as one), until it ends."""
        router = task_command_router_pb2
        if request.file_descriptor != router.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT:
            return
        command = self._sandbox_of(_sandbox(request.task_id)).commands[request.exec_id]
        with self._output(request.exec_id).open("rb") as file:
            file.seek(request.offset)
            while not self._over.is_set():
                over = command.poll() is not None
                if data := file.read(65_536):
                    await send(router.TaskExecStdioReadResponse(data=data))
                elif over:
                    return
                else:
                    await asyncio.sleep(0.02)

    def _on_SandboxTerminateV2(self, request: Any) -> Any:  # noqa: N802
        self.terminate(request.sandbox_id)
        return api_pb2.SandboxTerminateResponse()

    async def _wait(self, request: Any) -> Any:
        command = self._sandbox_of(_sandbox(request.task_id)).commands[request.exec_id]
        while (code := command.poll()) is None:
            await asyncio.sleep(0.02)
        answer = task_command_router_pb2.TaskExecWaitResponse
        return answer(code=code) if code >= 0 else answer(signal=-code)

    def _on_AppFetchLogs(self, request: Any) -> Any:  # noqa: N802
        sandbox = self._sandbox_of(request.sandbox_id or _sandbox(request.task_id))
        items = [
            api_pb2.TaskLogs(data=line, timestamp=sandbox.begun)
            for line in sandbox.printed.read_text(errors="replace").splitlines(keepends=True)
        ]
        batch = api_pb2.TaskLogsBatch(task_id=request.task_id, items=items)
        return api_pb2.AppFetchLogsResponse(batches=[batch])


def _task(sandbox: str) -> str:
    return f"ta-{sandbox}V"


def _sandbox(task: str) -> str:
    return task.removeprefix("ta-").removesuffix("V")


def _environment(name: str) -> str:
    if name not in ("", "research"):
        raise GRPCError(Status.NOT_FOUND, f"No environment {name}")
    return name


def _app(request: Any) -> str:
    return f"ap-{_environment(request.environment_name)}{request.app_name}"


def _valid(tags: Any) -> None:
    """Validate as Modal's own client does for objects other than sandboxes."""
    for tag in tags:
        for text in (tag.tag_name, tag.tag_value):
            if not is_valid_tag(text, max_length=63):
                raise GRPCError(Status.INVALID_ARGUMENT, f"Invalid tag {text!r}")


@functools.cache
def _jwt() -> str:
    text = json.dumps({"exp": time.time() + 3600 * 24}).encode()
    return f"a.{base64.urlsafe_b64encode(text).decode().rstrip('=')}.c"


def _servicer(base: Any, modal: Modal) -> Any:
    """Return an object of one of the service's classes, answered by `modal`."""

    def method(name: str) -> Callable[..., Any]:
        async def handle(self: Any, stream: Any) -> None:
            request = await stream.recv_message()
            if name == "TaskExecStdioRead":
                modal.requests.append(name)
                await modal.read_output(request, stream.send_message)
                return
            await stream.send_message(await modal.answer(name, request, stream.metadata))

        return handle

    return type("Servicer", (base,), {name: method(name) for name in base.__abstractmethods__})()
