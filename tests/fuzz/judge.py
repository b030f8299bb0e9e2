"""Command lines judged one by one: `sweeper plan ...`, each in a process of its own that is forked
from one in which everything is loaded already.

    python tests/fuzz/judge.py        requests on stdin, answers on stdout, a line of JSON each

A request is {"cwd", "arguments", "real"}: the arguments after `sweeper`, and whether a recipe is
asked in an interpreter of its own (as always outside of here) or, much quicker, in this process.
An answer is {"code", "out", "err", "seconds", "megabytes", "did"}: the exit code (negative: the
signal that ended it), processor time, children's included, by how much memory grew at most, and
what it did that a plan must not: files written, programs started.
"""

import contextlib
import io
import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sweeper.sandbox import bubblewrap

PROCESSOR_SECONDS = 10
"""A case that takes longer is ended, and counts as one that never ends."""
WALL_SECONDS = 60
MEMORY = 1 << 30

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_DEEDS = (
    *("os.chmod", "os.chown", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg"),
    *("os.link", "os.mkdir", "os.posix_spawn", "os.remove", "os.rename", "os.rmdir", "os.spawn"),
    *("os.symlink", "os.system", "os.truncate", "os.utime", "pty.spawn", "socket.bind"),
    *("socket.connect", "subprocess.Popen"),
)


def load() -> Any:
    """Import all that a plan may need, so that no case pays for it; gives the module of verbs."""
    import ruamel.yaml  # noqa: F401

    import sweeper.recipes.sft  # noqa: F401
    from sweeper import cli
    from sweeper.commands import plan, plan_text  # noqa: F401
    from sweeper.launcher import manifest, preview  # noqa: F401
    from sweeper.recipe import (
        checking,  # noqa: F401
        inspection,  # noqa: F401
    )

    return cli


def ask_here(
    python: str, cwd: str, request: Mapping[str, Any], env: Mapping[str, str]
) -> dict[str, Any]:
    """What `sweeper.recipe.reference._ask` answers, without an interpreter of its own."""
    from sweeper.recipe import (
        bootstrap,
        inspection,
    )

    request = json.loads(json.dumps(request))
    return inspection.answer(request, bootstrap.to_argv, bootstrap.written, bootstrap.set_path)


class Watch:
    """Notes what a process does to the world."""

    def __init__(self) -> None:
        self.did: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = any(c in mode for c in "wax+") if mode else flags & _WRITING
            writes = writes and flags & os.O_TMPFILE != os.O_TMPFILE  # has no name, leaves nothing
            if writes and isinstance(path, str | bytes) and path not in ("/dev/null", os.devnull):
                self.did.append(f"open {path!r}")
        elif event == "subprocess.Popen":
            command = list(arguments[1])
            asks = [os.path.basename(str(a)) for a in command[1:2]] == ["start.py"]
            if not asks and command != bubblewrap.trial():  # which plans look for what may lack
                self.did.append(f"{event} {command}")
        elif event in _DEEDS and event != "os.killpg":  # which ends the interpreter that was asked
            self.did.append(f"{event} {arguments!r}"[:200])


def case(cli: Any, request: Mapping[str, Any], answer: int) -> None:
    """Run one, in the forked process, and write what came of it to the file `answer`."""
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS))
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    os.chdir(request["cwd"])
    if not request["real"]:
        from sweeper.recipe import probe
        from sweeper.recipe import reference as recipe

        recipe._ask = ask_here
        probe.ahead = lambda *_, **__: contextlib.nullcontext()
    watch = Watch()
    out, err = io.StringIO(), io.StringIO()
    code: Any = 1
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(request["arguments"])
        except SystemExit as error:
            code = error.code
        except BaseException:  # noqa: BLE001  (that is what is looked for)
            traceback.print_exc()
    did = list(watch.did)
    outcome = {"code": code, "out": out.getvalue()[:200_000], "err": err.getvalue(), "did": did}
    with open(answer, "wb", closefd=False) as file:
        file.write(json.dumps(outcome).encode())


def judge(cli: Any, request: Mapping[str, Any], held: int) -> dict[str, Any]:
    """Run a case in a process of its own and add up what it took; one that does nothing has `held`
    kilobytes."""
    with tempfile.TemporaryFile() as file:
        status, used = forked(lambda: case(cli, request, file.fileno()))
        file.seek(0)
        text = file.read()
    ended = os.waitstatus_to_exitcode(status)
    outcome = json.loads(text) if text else {"code": ended or 1, "out": "", "err": "", "did": []}
    return {
        **outcome,
        "seconds": used.ru_utime + used.ru_stime,
        "megabytes": max(0.0, (used.ru_maxrss - held) / 1024),
    }


def forked(work: Callable[[], object]) -> tuple[int, resource.struct_rusage]:
    """Do something in a process of its own: how it ended, and what it used."""
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(WALL_SECONDS)
            work()
        finally:
            os._exit(0)
    _, status, used = os.wait4(child, 0)
    return status, used


def requests() -> Iterator[dict[str, Any]]:
    """The requests on stdin."""
    for line in sys.stdin:
        yield json.loads(line)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.environ["SWEEPER_DEBUG"] = "1"  # a bug in sweeper shows as a traceback
    sys.dont_write_bytecode = True
    cli = load()
    import gc

    gc.collect()
    gc.freeze()  # what is loaded stays shared with the cases
    held = forked(lambda: None)[1].ru_maxrss
    for request in requests():
        answers.write(json.dumps(judge(cli, request, held)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
