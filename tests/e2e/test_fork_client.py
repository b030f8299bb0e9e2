"""A recipe that a server forks behaves as after an exec, and dies with its worker."""

import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.real import until
from support.warm import RECORD_ALL, Warm
from support.worker_bench import Bench

from sweeper.common import daemon
from sweeper.sweep.states import State
from sweeper.worker import fork_client

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="fork servers are for Linux"),
]


@pytest.fixture
def warmed(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Warm]:
    """Yield a `Warm` with a prepared first attempt and a list of modules."""
    # A busy machine may need long to start a server.
    monkeypatch.setattr(daemon, "_STARTING_SECONDS", 90.0)
    warm = Warm(bench, tmp_path, tmp_path / "home")
    warm.prepare(RECORD_ALL)
    warm.learn("json")
    yield warm
    warm.close()


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("locale", ["C.UTF-8", None])
def test_it_is_as_after_an_exec(
    warmed: Warm, interpreter: tuple[str, Path], locale: str | None
) -> None:
    """Also without a locale, where an interpreter sets one itself."""
    for name in [name for name in warmed.environment if name.startswith(("LANG", "LC_"))]:
        del warmed.environment[name]
    warmed.change({} if locale is None else {"LANG": locale})
    (interpreter[1] / "packaged.py").write_text(
        "import os\nos.environ.setdefault('SET_BY_AN_IMPORT', '1')"
    )
    given = {"recipe": warmed.recipe(interpreter[0])}
    program = f"import packaged\n{RECORD_ALL}"
    warmed.run(program, 1, warm=False, **given)
    warmed.learn("json", "random", "packaged")
    warmed.run(program, 2, **given)
    ended = warmed.run(program, 3, **given, config={"code": 3})
    records = [warmed.recorded(attempt) for attempt in (1, 2, 3)]
    details = [record.pop("of its own") for record in records]
    assert [detail.pop() for detail in details] == [False, True, True]
    assert len({detail[0] for detail in details}) == len({detail[1] for detail in details}) == 3
    for record, attempt in zip(records, (1, 2, 3), strict=True):
        environment = record["environment"]
        assert environment["MY_KEY"] == "canary-4711"
        assert environment.pop("SWEEPER_ATTEMPT") == str(attempt)
        assert environment.pop("SWEEPER_NAME").endswith("" if attempt == 1 else f" ({attempt})")
        assert environment.pop("TINKER_TAGS").endswith(f".{attempt}")
        folder = warmed.bench.path(attempt)
        assert environment.pop("SWEEPER_RUN_DIR") == str(folder)
        assert f"{warmed.bench.id}.{attempt}" in environment.pop("SWEEPER_METER")
        record["argv"] = record["argv"][:1]
        assert (folder / "left").read_text() == "last words"  # although it left the file open
    assert records[0] == records[1] == records[2]
    assert (ended["state"], ended["code"]) == (State.FAILED, 3)
    assert ended["max_rss_bytes"] > 1 << 20
    logs = [sorted(warmed.bench.log(attempt).splitlines()) for attempt in (1, 2, 3)]
    assert logs[0] == logs[1] == logs[2] and "at exit" in logs[1]


def test_an_attempt_after_a_failure_starts_by_itself(warmed: Warm) -> None:
    for attempt, forked in ((1, True), (2, False), (3, True)):
        warmed.run(RECORD_ALL, attempt, config={"code": 1 if attempt == 1 else 0})
        assert warmed.recorded(attempt)["of its own"][2] is forked


def test_the_server_has_no_secret(warmed: Warm) -> None:
    """Neither in its environment nor in its memory, which every later run copies."""
    warmed.run(RECORD_ALL)
    (server,) = warmed.servers
    assert warmed.recorded(1)["environment"]["SOME_API_KEY"] == "canary-4712"
    assert warmed.recorded(1)["of its own"][2]
    assert b"canary" not in Path(f"/proc/{server}/environ").read_bytes()
    with open(f"/proc/{server}/mem", "rb") as memory:
        for line in Path(f"/proc/{server}/maps").read_text().splitlines():
            where, rights, *_ = line.split()
            if "w" in rights:
                begin, end = (int(part, 16) for part in where.split("-"))
                memory.seek(begin)
                assert b"canary-47" not in memory.read(end - begin)


LIVES = """
import os, subprocess, sys, time
folder = dict(item.split("=", 1) for item in sys.argv[1:])["log_path"]
child = subprocess.Popen(["sleep", "1000"])
with open(folder + "/pids.new", "w") as file:
    file.write(f"{os.getpid()} {os.getppid()} {child.pid}")
os.rename(folder + "/pids.new", folder + "/pids")
while not os.path.exists(folder + "/end"): time.sleep(0.02)
"""


def living(warmed: Warm) -> tuple[subprocess.Popen[bytes], int, int, int]:
    """Start a worker with a forked recipe. Return it, and the pids of recipe, keeper and child."""
    warmed.prepare(LIVES)
    warmed.learn("json")
    worker = warmed.bench.start()
    warmed.bench.wait_for(warmed.bench.path() / "pids")
    recipe, keeper, child = map(int, (warmed.bench.path() / "pids").read_text().split())
    assert warmed.servers and keeper != worker.pid
    return worker, recipe, keeper, child


def test_it_dies_with_its_worker(warmed: Warm) -> None:
    worker, recipe, keeper, child = living(warmed)
    worker.kill()
    until(lambda: not any(map(lives, (recipe, keeper, child))))
    assert lives(warmed.servers[0])


def test_it_outlives_the_server(warmed: Warm) -> None:
    worker, recipe, _, _ = living(warmed)
    (server,) = warmed.servers
    os.kill(server, signal.SIGKILL)
    until(lambda: not lives(server))
    assert lives(recipe)
    (warmed.bench.path() / "end").touch()
    warmed.bench.finish(worker)
    assert warmed.bench.outcome()["state"] is State.SUCCEEDED


def test_another_server_serves_while_runs_of_the_first_live(warmed: Warm) -> None:
    first = warmed.fork("import time; time.sleep(1000)")
    (server,) = warmed.servers
    os.kill(server, signal.SIGKILL)
    until(lambda: not lives(server))
    second = warmed.fork("raise SystemExit(4)")
    assert first is not None and second is not None
    assert second.reap()[0] == 4
    os.killpg(first.pid, signal.SIGTERM)
    assert first.reap()[0] == -signal.SIGTERM


@pytest.mark.parametrize("longer", [0.0, 0.3])
def test_a_server_that_ends_during_a_request_is_replaced(warmed: Warm, longer: float) -> None:
    """The next server serves, even if the old one holds its lock a little longer."""
    server = warmed.serve()
    (lock,) = warmed.modules.parent.glob("*.lock")

    def end() -> None:
        os.kill(server, signal.SIGKILL)
        until(lambda: not lives(server))
        held = os.open(lock, os.O_RDWR)
        fcntl.flock(held, fcntl.LOCK_EX)
        threading.Timer(longer, os.close, (held,)).start()

    os.kill(server, signal.SIGSTOP)  # accepts connections but does not answer yet
    threading.Timer(0.5, end).start()
    child = warmed.fork("raise SystemExit(4)")
    assert child is not None and child.reap()[0] == 4
    assert warmed.servers != [server]


def test_another_version_of_a_file_of_the_server_needs_another_server(warmed: Warm) -> None:
    """A server's name depends on all files that it and its forks load from there."""
    child = warmed.fork(
        "import os, sys\n"
        "found = [m.__file__ for name, m in sys.modules.items() if name.startswith('sweeper_')]\n"
        "print(*map(os.path.basename, found))\n"
    )
    assert child is not None and child.reap()[0] == 0
    with open(child.output) as output:
        loaded = set(output.read().split())
    assert "fork_server.py" in loaded and len(loaded) > 1
    assert loaded <= set(fork_client.PARTS)


def test_its_group_is_there_when_it_has_begun(warmed: Warm) -> None:
    """A signal right after the start is not lost."""
    for _ in range(10):
        child = warmed.fork("import time; time.sleep(1000)")
        os.killpg(child.pid, signal.SIGTERM)
        assert child.reap()[0] == -signal.SIGTERM


def test_how_it_ended_is_known_without_its_keeper(warmed: Warm) -> None:
    """The keeper is killed or stopped between the recipe's end and the worker's check."""
    for number in (signal.SIGKILL, signal.SIGSTOP):
        child = warmed.fork("raise SystemExit(7)")
        child.await_end()
        assert select.select([child.connection], [], [], 90)[0]  # the keeper has reported
        os.kill(child.keeper, number)
        assert child.reap()[0] == 7


def test_no_keeper_no_recipe(warmed: Warm, tmp_path: Path) -> None:
    """The keeper is killed right after the recipe has started."""
    for _ in range(5):
        child = warmed.fork("import time; time.sleep(1000)")
        os.kill(child.keeper, signal.SIGKILL)
        assert child.reap() == (-9, None)
        assert not lives(child.pid)


def test_it_dies_with_its_keeper(warmed: Warm) -> None:
    """The worker records SIGKILL after the recipe is dead."""
    worker, recipe, keeper, child = living(warmed)
    os.kill(keeper, signal.SIGKILL)
    warmed.bench.finish(worker)
    assert not lives(recipe)
    until(lambda: not lives(child))
    outcome = warmed.bench.outcome()
    assert (outcome["state"], outcome["signal"]) == (State.FAILED, "SIGKILL")


def test_it_stops_with_its_worker(warmed: Warm) -> None:
    worker, recipe, _, child = living(warmed)
    worker.terminate()
    warmed.bench.finish(worker)
    assert not lives(recipe)
    until(lambda: not lives(child))
    outcome = warmed.bench.outcome()
    assert (outcome["state"], outcome["reason"]) == (State.PREEMPTED, "terminated")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], list[bool]]:
    """Return a function that sets this machine's load. Its list grows with each query."""

    def give(value: float) -> list[bool]:
        looks: list[bool] = []
        monkeypatch.setattr(os, "getloadavg", lambda: (looks.append(True), (value,) * 3)[1])
        return looks

    return give


def test_a_server_that_does_not_answer_costs_one_wait(
    warmed: Warm, load: Callable[[float], list[bool]]
) -> None:
    server = warmed.serve()
    os.kill(server, signal.SIGSTOP)
    looks = load(0.0)  # the load is queried after each wait
    for _ in range(3):
        assert warmed.fork("pass", wait_s=0.3) is None
    assert len(looks) == 1
    os.kill(server, signal.SIGCONT)


def test_on_a_busy_machine_a_server_is_waited_for(
    warmed: Warm, load: Callable[[float], list[bool]]
) -> None:
    """Hundreds of runs that start at once queue. Starting without the server would cost more."""
    server = warmed.serve()
    load(1000.0)
    looks: list[bool] = []

    def meanwhile() -> bool:
        looks.append(True)
        if len(looks) == 3:
            os.kill(server, signal.SIGCONT)
        return True

    os.kill(server, signal.SIGSTOP)
    child = warmed.fork("pass", meanwhile=meanwhile, wait_s=0.1)
    assert child is not None and child.reap()[0] == 0
    assert len(looks) >= 3
    os.kill(server, signal.SIGSTOP)
    assert warmed.fork("pass", meanwhile=lambda: False, wait_s=0.1) is None  # it has to stop
    os.kill(server, signal.SIGCONT)


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return an interpreter and the folder of its installed packages."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    return str(folder / "bin" / "python"), packages


SAY = """
import json, os, sys, packaged
folder = dict(item.split("=", 1) for item in sys.argv[1:])["log_path"]
with open("/proc/self/cmdline") as file:
    forked = "serve" in file.read().split("\\0")
json.dump([packaged.VALUE, forked], open(folder + "/said", "w"))
"""


def test_a_package_that_was_changed(warmed: Warm, interpreter: tuple[str, Path]) -> None:
    """The next run starts without a server and has the new version; later runs use a new server."""
    package = interpreter[1] / "packaged.py"
    package.write_text("VALUE = 1")
    recipe = warmed.recipe(interpreter[0])
    warmed.prepare(SAY, recipe=recipe)
    warmed.learn("json", "packaged")
    for attempt, expected in ((1, [1, True]), (2, [22, False]), (3, [22, True])):
        if attempt == 2:
            package.write_text("VALUE = 22")
        warmed.run(SAY, attempt, recipe=recipe)
        assert warmed.recorded(attempt) == expected


THREAD = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"


@pytest.mark.parametrize(
    ("package", "neighbour", "modules", "expected", "refused"),
    [
        ("VALUE = 1", "VALUE = 2", ["json", "packaged"], [2, False], None),
        (THREAD + "VALUE = 1", None, ["packaged"], [1, False], "has started threads (1)"),
        ("VALUE = 1", None, ["gone", "broken", "packaged"], [1, True], None),
    ],
    ids=["hidden by a file of the recipe's folder", "starts a thread", "cannot be imported"],
)
def test_modules_that_a_server_imports(
    warmed: Warm,
    interpreter: tuple[str, Path],
    package: str,
    neighbour: str | None,
    modules: list[str],
    expected: list[Any],
    refused: str | None,
) -> None:
    (interpreter[1] / "packaged.py").write_text(package)
    (interpreter[1] / "broken.py").write_text("raise SystemExit(3)")
    recipe = warmed.recipe(interpreter[0])
    warmed.prepare(SAY, recipe=recipe)
    warmed.learn(*modules)
    if neighbour is not None:
        (warmed.folder / "packaged.py").write_text(neighbour)
    warmed.run(SAY, recipe=recipe)
    assert warmed.recorded(1) == expected
    if refused is not None:
        assert fork_client.at_work(str(warmed.home)).refused == f"an imported module {refused}"


def test_what_would_be_imported_otherwise(warmed: Warm, interpreter: tuple[str, Path]) -> None:
    """Shadowing modules, variables and files: the run imports what it would without a server."""
    package = interpreter[1] / "packaged.py"
    recipe = warmed.recipe(interpreter[0])
    mine = warmed.folder.parent / "mine"
    mine.mkdir()
    (mine / "packaged.py").write_text("VALUE = 'mine'")
    package.write_text("VALUE = 1")
    warmed.prepare(SAY, recipe=recipe)
    warmed.learn("json", "packaged")
    warmed.change({"PYTHONPATH": str(mine)})
    warmed.run(SAY, 1, recipe=recipe)
    (mine / "packaged.py").write_text("VALUE = 'mine, edited'")
    warmed.run(SAY, 2, recipe=recipe)
    assert [warmed.recorded(attempt) for attempt in (1, 2)] == [
        ["mine", False],
        ["mine, edited", False],
    ]
    warmed.change({"PYTHONPATH": ""})
    package.write_text("import os\nVALUE = os.environ.get('MY_KEY', 'none')")
    warmed.run(SAY, 3, recipe=recipe)
    assert warmed.recorded(3) == ["canary-4711", False]
    package.write_text("F = open('/dev/zero', 'rb')\nVALUE = F.read(1).decode()")
    warmed.run(SAY, 4, recipe=recipe)
    assert warmed.recorded(4) == ["\0", False]


def test_a_missing_folder_fails_as_without_a_server(warmed: Warm, tmp_path: Path) -> None:
    assert warmed.fork("pass", cwd=str(tmp_path / "gone")) is None
    outcome = warmed.run(RECORD_ALL, cwd=str(tmp_path / "gone"))
    assert (outcome["state"], outcome["reason"]) == (State.FAILED, "start")


def test_a_folder_that_others_may_write_to_is_not_used(warmed: Warm) -> None:
    (warmed.home / "warm").chmod(0o770)
    warmed.run(RECORD_ALL)
    assert not warmed.servers and not warmed.recorded(1)["of its own"][2]


@pytest.mark.parametrize(
    ("changes", "environment"),
    [
        ({"env": {"WHERE": "{log_path}/x"}}, {}),
        ({}, {"PYTHONPATH": "src"}),
        ({"warm": False}, {}),
    ],
)
def test_what_could_make_a_difference_is_not_forked(
    warmed: Warm, changes: dict[str, Any], environment: dict[str, str]
) -> None:
    warmed.change(environment)
    outcome = warmed.run(RECORD_ALL, **changes)
    assert outcome["state"] is State.SUCCEEDED
    assert not warmed.servers
