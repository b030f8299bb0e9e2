"""The server of the Model Context Protocol, with tools, resources and prompts. It uses stdio, or
HTTP on this machine only."""

import functools
import hmac
import inspect
import os
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import ToolAnnotations
from starlette.types import ASGIApp, Receive, Scope, Send

from sweeper.agents.answers import NOTICE, Marker, answered, masked
from sweeper.agents.grids import find_grid, grid_names
from sweeper.agents.preparing import Preparing
from sweeper.agents.reading import Reading
from sweeper.agents.running import Running
from sweeper.agents.skill import ARC
from sweeper.agents.training import Training
from sweeper.agents.workspace import Workspace
from sweeper.errors import EnvironmentFailure, SweeperError

_ORDERING = frozenset({"train_sft_step", "train_grpo_step", "sample", "save", "load", "finish"})
_STARTING = frozenset({"launch", "retry"}) | _ORDERING
_BEGINNING = frozenset({"init_sft", "init_grpo"})
_CHANGING = _STARTING | _BEGINNING | {"cancel", "note", "record_result", "datasets"}
_LONGEST = 60_000
"""The largest number of characters of a resource."""
_ABOUT = f"""\
Experiment sweeps for post-training language models. A sweep runs the configurations of a grid, a
YAML file in the grids folder, with several seeds each. The order of the work: recipes, models,
datasets and power to write a grid; plan (what would run, what it costs); launch (within the budget
that a person has set); wait, alarms, rollouts; verdict, record_result, note.
Believe the verdict, not a single run: seeds and intervals decide. {NOTICE}"""


def every_tool(workspace: Workspace) -> list[Callable[..., object]]:
    """Return the functions of all tools, in the order in which an agent uses them."""
    running, reading, training = Running(workspace), Reading(workspace), Training(workspace)
    preparing = Preparing(workspace)
    return [
        *(preparing.recipes, preparing.models, preparing.datasets, preparing.power),
        *(running.plan, running.launch, running.status, running.wait, running.alarms),
        *(running.cancel, running.retry, reading.runs, reading.verdict, reading.compare),
        *(reading.record_result, reading.rollouts, reading.items, reading.logs),
        *(reading.checkpoints, reading.note, training.init_sft, training.init_grpo),
        *(training.train_sft_step, training.train_grpo_step, training.sample, training.save),
        *(training.load, training.finish, training.session),
    ]


def make_server(workspace: Workspace) -> "MCPServer[object]":
    """Return a server for a workspace."""
    from sweeper import __version__

    tools = [_tool(function) for function in every_tool(workspace)]
    server: MCPServer[object] = MCPServer(
        "sweeper", instructions=_ABOUT, version=__version__, tools=tools, log_level="ERROR"
    )
    _add_resources(server, workspace)
    _add_prompts(server)
    return server


def _tool(function: Callable[..., object]) -> Tool:
    """Return a tool that calls `function` and prepares its result with `answered`. The tool refuses
    unknown arguments. If the function has a parameter `request`, the fields of the parameter's type
    become the tool's arguments."""
    name = function.__name__
    tool = Tool.from_function(
        _guarded(function),
        name=name,
        description=inspect.getdoc(function),
        annotations=ToolAnnotations(
            read_only_hint=name not in _CHANGING,
            destructive_hint=name == "cancel",
            idempotent_hint=name not in _STARTING,
            open_world_hint=name == "datasets",
        ),
    )
    request = inspect.signature(function).parameters.get("request")
    if request is not None:
        tool.fn_metadata.arg_model = request.annotation
    model = tool.fn_metadata.arg_model
    model.model_config["extra"] = "forbid"
    model.model_rebuild(force=True)
    tool.parameters = model.model_json_schema(by_alias=True)
    return tool


def _guarded(function: Callable[..., object]) -> Callable[..., object]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_later(*args: object, **kwargs: object) -> object:
            with _errors_as(ToolError):
                return answered(await function(*args, **kwargs))

        return call_later

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        with _errors_as(ToolError):
            return answered(function(*args, **kwargs))

    return call


@contextmanager
def _errors_as(kind: type[Exception]) -> Generator[None]:
    """Convert sweeper's errors to errors of the type `kind`, with secrets masked."""
    try:
        yield
    except SweeperError as error:
        raise kind(str(masked(str(error)))) from None


def _add_resources(server: "MCPServer[object]", workspace: Workspace) -> None:
    def resource(find: Callable[[], str]) -> str:
        with _errors_as(ResourceError):
            return str(masked(find()[:_LONGEST]))

    @server.resource("sweeper://grids", mime_type="text/plain")
    def grids() -> str:
        """Return the grids that may be planned and launched, one path per line."""
        return resource(lambda: "\n".join(grid_names(workspace.grids)))

    @server.resource("sweeper://grids/{name}", mime_type="application/yaml")
    def grid(name: str) -> str:
        """Return the text of a grid. In the grid's path, write %2F for /."""
        return resource(lambda: _text(find_grid(workspace.grids, name)))

    @server.resource("sweeper://sweeps/{sweep}/grid", mime_type="application/yaml")
    def grid_of_sweep(sweep: str) -> str:
        """Return the grid of a sweep, as it was launched."""
        return resource(lambda: workspace.registry.sweep(sweep).plan.grid_text)

    @server.resource("sweeper://sweeps/{sweep}/report", mime_type="text/markdown")
    def report(sweep: str) -> str:
        """Return the report of a sweep as Markdown."""
        return resource(lambda: _report(workspace, sweep))

    @server.resource("sweeper://sweeps/{sweep}/notes", mime_type="text/plain")
    def notes(sweep: str) -> str:
        """Return the notes on a sweep and its runs."""
        return resource(lambda: _notes(workspace, sweep))

    del grids, grid, grid_of_sweep, report, notes


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(_LONGEST)


def _report(workspace: Workspace, sweep: str) -> str:
    from sweeper import analysis

    report = analysis.analyze(workspace.registry, sweep)
    return f"{NOTICE}\n\n{Marker().mark(_text(report.files['report.md']), _LONGEST)}"


def _notes(workspace: Workspace, sweep: str) -> str:
    from sweeper.results.marks import marked

    opened = workspace.registry.sweep(sweep)
    names = {run.id: run.name for run in opened.runs}
    lines = [
        f"{note.time} {note.by}{f' on {run}' if run else ''}: {note.text}"
        for run, note in marked(opened.folder, opened.on_error).notes(names)
    ]
    return f"{NOTICE}\n\n{Marker().mark(chr(10).join(lines), _LONGEST)}"


def _add_prompts(server: "MCPServer[object]") -> None:
    @server.prompt(title="A study, from its question to its verdict")
    def research(question: str) -> str:
        """Return instructions for answering a question by experiments: first the baseline, then
        one change at a time."""
        return f"The question: {question}\n\n{ARC}"

    @server.prompt(title="Investigate a sweep that went wrong")
    def diagnose(sweep: str) -> str:
        """Return instructions for finding out why runs of a sweep failed or learnt nothing."""
        return (
            f"Find out what is wrong with the sweep {sweep}. Ask `status`, then `alarms`. Read the "
            "`logs` of runs that failed, and the best and the worst `rollouts` of some that ran. "
            "Write the cause with its evidence in a `note` before you change anything. Then change "
            "one thing, `plan` it, and launch it as a sweep of its own."
        )

    del research, diagnose


def serve_stdio(workspace: Workspace) -> None:
    """Serve the parent process on standard input and output until the connection is closed."""
    make_server(workspace).run("stdio")


def serve_http(workspace: Workspace, port: int, token: str, ready: Callable[[int], None]) -> None:
    """Serve clients on this machine that send the token. `ready` is called with the port when the
    server listens. Raises `EnvironmentFailure` if the port is in use."""
    import uvicorn

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise EnvironmentFailure(
                f"port {port}: {error.strerror}: choose another port"
            ) from error
        hosts = ["127.0.0.1:*", "localhost:*"]
        security = TransportSecuritySettings(
            allowed_hosts=hosts, allowed_origins=[f"http://{host}" for host in hosts]
        )
        app = make_server(workspace).streamable_http_app(transport_security=security)
        config = uvicorn.Config(require_token(app, token), log_level="error", lifespan="on")
        listener.listen(128)  # a client that knows the port may connect before uvicorn accepts
        ready(listener.getsockname()[1])
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def require_token(app: ASGIApp, token: str) -> ASGIApp:
    """Wrap `app` so that requests without the token get the HTTP status 401."""
    expected = f"Bearer {token}".encode()

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            header = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(header, expected):
                head = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
                await send({"type": "http.response.start", "status": 401, "headers": head})
                await send({"type": "http.response.body", "body": b"the token is missing or wrong"})
                return
        await app(scope, receive, send)

    return checked


def token_of(home: str, make: Callable[[], str]) -> tuple[str, str]:
    """Return this user's access token for HTTP, and the path of the private file that stores the
    token. If the file is missing, `make` creates the token. Raises `EnvironmentFailure`."""
    from sweeper.common.atomic import atomic_create

    path = os.path.join(home, "mcp.token")
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
        with suppress(FileExistsError):
            atomic_create(path, make().encode(), mode=0o600)
        with open(path, encoding="ascii") as file:
            return file.read().strip(), path
    except (OSError, UnicodeDecodeError) as error:
        raise EnvironmentFailure(f"{path}: cannot be read or created ({error})") from error
