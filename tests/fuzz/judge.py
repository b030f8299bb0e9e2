"""Runs command lines `sweeper plan ...`, each in a new process, which is forked from one that has
already imported everything.

    python tests/fuzz/judge.py        requests on stdin, answers on stdout, one JSON line each

A request is {"cwd", "arguments", "real"}: the arguments after `sweeper`, and whether a recipe is
queried in a separate interpreter (as users have it) or, much more quickly, in this process. An
answer is {"code", "out", "err", "seconds", "megabytes", "did"}: the exit code (negative: the signal
that ended the process), the processor time with that of child processes, the maximum growth of
memory, and actions that a plan must not do: files written, programs started.
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
"""A case that takes longer is killed."""
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
    """Import all that a plan may need, so that no case has to; return the module `cli`."""
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
    """Return what `sweeper.recipe.reference._ask` returns, without a separate interpreter."""
    from sweeper.recipe import (
        bootstrap,
        inspection,
    )

    request = json.loads(json.dumps(request))
    return inspection.answer(request, bootstrap.to_argv, bootstrap.written, bootstrap.set_path)


class Watch:
    """Records the actions of a process that have effects outside it."""

    def __init__(self) -> None:
        self.did: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = any(c in mode for c in "wax+") if mode else flags & _WRITING
            writes = writes and flags & os.O_TMPFILE != os.O_TMPFILE  # leaves no file behind
            if writes and isinstance(path, str | bytes) and path not in ("/dev/null", os.devnull):
                self.did.append(f"open {path!r}")
        elif event == "subprocess.Popen":
            command = list(arguments[1])
            asks = [os.path.basename(str(a)) for a in command[1:2]] == ["start.py"]
            if not asks and command != bubblewrap.trial():  # plans may test bubblewrap
                self.did.append(f"{event} {command}")
        elif event in _DEEDS and event != "os.killpg":  # ends the recipe's interpreter
            self.did.append(f"{event} {arguments!r}"[:200])


def case(cli: Any, request: Mapping[str, Any], answer: int) -> None:
    """Run a case in the forked process, and write its outcome to the file `answer`."""
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
    """Run a case in a new process, and return its outcome and its costs. A process that does
    nothing has `held` kilobytes."""
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
    """Call `work` in a new process; return its wait status and the resources that it used."""
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
    for line in sys.stdin:
        yield json.loads(line)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.environ["SWEEPER_DEBUG"] = "1"  # a bug in sweeper shows as a traceback
    sys.dont_write_bytecode = True
    cli = load()
    import gc

    gc.collect()
    gc.freeze()  # imported objects stay shared with the cases
    held = forked(lambda: None)[1].ru_maxrss
    for request in requests():
        answers.write(json.dumps(judge(cli, request, held)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
