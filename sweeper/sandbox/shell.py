"""A shell that keeps its state between commands, controlled through two pipes. A supervisor (bash)
in the environment starts one shell at a time. Random words mark the end of each output."""

import itertools
import os
import secrets
import select
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import BytesIO

from sweeper.sandbox.base import Died, Ended, Limits, Result

_WORD = 12
_SHELLS = 64
"""Maximum number of shells in one environment."""
_PIECE = 1 << 18
_PATIENCE = (0.5, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds to wait after each signal to the supervisor."""
_START_SECONDS = 30.0
_CHECKS, _CHECKS_IN_SESSION = 100, 10
"""Number of checks, 10 ms apart, whether killed processes are gone. In a session (without a
namespace) there are fewer checks, since the machine's first process may reap killed processes
slowly or never."""

_LOOP = r"""
while IFS= read -r -d '' n && IFS= read -r -d '' k && IFS= read -r -d '' c; do
  if [ "$k" = data ]; then eval "$c" 2>&1; else eval "$c" </dev/null 2>&1; fi
  builtin printf '\0%s %d\0' "$n" "$?"
done
"""

# The supervisor has handlers for signals. They keep it alive, interrupt its `wait`, and do not
# apply to its children. (Without handlers, the first process of a namespace receives no signals
# from inside the namespace.) A killed process may still finish a write, and its output must not
# count for the next command. So the supervisor reports the end of a shell only when all processes
# that were killed with it are gone. When its input ends, the process that started the supervisor is
# gone, so the supervisor ends everything and exits. The signal to end everything also sets `u`, so
# that a shell that starts at that moment is ended too.
_SUPERVISOR = r"""
IFS= read -r -d '' words
%(limits)s
trap : HUP INT QUIT TERM ALRM USR2 PIPE
trap %(end_all)s'; u=1' USR1
%(prepare)s
n=0 u=
while [ $n -lt %(shells)d ]; do
  %(bash)s --noprofile --norc -c %(loop)s bash <&0 &
  p=$!
  [ "$u" ] && kill -KILL $p
  while :; do wait $p; s=$?; kill -0 $p 2>/dev/null || break; done
  for ((i = 0; i < %(checks)d; i++)); do
    [ "$u" ] && %(any_left)s 2>/dev/null || break
    sleep 0.01
  done
  if IFS= read -r -t 0; then
    IFS= read -r -d '' -t 0.01 x
    [ $? = 1 ] && break
  fi
  u=
  printf '\0%%s %%d\0' "${words:$((n * %(word)d)):%(word)d}" $s
  n=$((n + 1))
done
%(end)s 2>/dev/null
"""


def supervisor(
    processes: str, prepare: str = "", limits: Limits | None = None, *, session: bool = False
) -> str:
    """Return the script of the supervisor, which starts a shell, and a new one when a shell ends.
    `kill` gets the arguments `processes` to end a shell with all of its processes. The script first
    executes `prepare`. With `session`, each shell gets its own session."""
    end_all = f"kill -KILL {processes}"
    lines = ["ulimit -c 0"]
    if limits is not None:
        lines += [f"ulimit -u {limits.processes}", f"ulimit -d {limits.memory_mb << 10}"]
        lines += ["ulimit -n 1024", "echo 1000 >/proc/self/oom_score_adj"]
    return _SUPERVISOR % {
        "limits": "\n".join(lines),
        "end_all": shlex.quote(end_all),
        "end": end_all,
        "any_left": f"kill -0 {processes}",
        "checks": _CHECKS_IN_SESSION if session else _CHECKS,
        "prepare": prepare,
        "shells": _SHELLS,
        "bash": "exec setsid bash" if session else "bash",
        "loop": shlex.quote(_LOOP),
        "word": _WORD,
    }


_turn = itertools.count()


def on_cpus(cpus: int | None) -> list[str]:
    """Return the prefix (`taskset ...`) that confines a command to `cpus` of this process's CPUs;
    empty if the command may use all CPUs. Each call takes the next CPUs in turn. A program can
    still choose other CPUs."""
    available = sorted(os.sched_getaffinity(0))
    if cpus is None or cpus >= len(available):
        return []
    first = next(_turn) * cpus
    chosen = {available[(first + number) % len(available)] for number in range(cpus)}
    return [shutil.which("taskset") or "taskset", "--cpu-list", ",".join(map(str, sorted(chosen)))]


class Output:
    """The beginning and the end of a command's output."""

    def __init__(self, keep: int) -> None:
        self._most_head, self._most_tail = keep - keep // 2, keep // 2
        self._head, self._tail, self._size = bytearray(), bytearray(), 0

    def add(self, piece: bytes | bytearray) -> None:
        """Add the next piece of the output."""
        self._size += len(piece)
        room = self._most_head - len(self._head)
        self._head += piece[: max(room, 0)]
        self._tail += piece[max(room, 0) :]
        if len(self._tail) > 2 * self._most_tail + _PIECE:
            self._cut()

    def _cut(self) -> None:
        del self._tail[: len(self._tail) - self._most_tail]

    def result(self, code: int | None, ended: Ended = "") -> Result:
        """Return the result of the command, with the part of its output that was kept."""
        if len(self._tail) > self._most_tail:
            self._cut()
        data = bytes(self._head + self._tail)
        return Result(code, data, self._size - len(data), ended)


class Shell:
    """A shell in an environment, controlled through the supervisor `process`. `end_all` makes the
    supervisor end the shell and all other processes. `why` returns the limit that was exceeded,
    or "". `root` is the prefix of the environment's paths."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        end_all: Callable[[], None],
        why: Callable[[], Ended] = lambda: "",
        root: str = "",
    ) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("the supervisor needs pipes as its standard input and output")
        self._process, self._end_all, self._why, self._root = process, end_all, why, root
        self._stdin, self._stdout = process.stdin.fileno(), process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        self._words = [secrets.token_hex(_WORD // 2) for _ in range(_SHELLS)]
        self._read = bytearray()
        self._first = "".join(self._words).encode() + b"\0"

    def await_ready(self) -> None:
        """Wait until the shell answers."""
        self.run(":", _START_SECONDS)

    def run(
        self, command: str, seconds: float, keep: int = 65_536, data: bytes | None = None
    ) -> Result:
        """Execute a command, with `data` as its standard input. Raises `Died` if the environment
        has ended, and ValueError for a command with a NUL."""
        if "\0" in command:
            raise ValueError("a command must not contain NUL")
        word = secrets.token_hex(_WORD // 2)
        kind = "run" if data is None else "data"
        request = self._first + "\0".join((word, kind, command, "")).encode(errors="replace")
        self._first = b""
        output = Output(keep)
        result = self._exchange(request + (data or b""), word, output, seconds)
        if result is None:
            self._end_shell(output)
            return output.result(None, "timeout")
        finished, code = result
        return output.result(code) if finished else output.result(None, self._why() or "shell")

    def reset(self) -> None:
        """End all processes, and wait for a new shell."""
        for _ in range(_SHELLS):  # Skip the reports about shells that have ended by themselves.
            if select.select([self._stdout], [], [], 0)[0]:
                self._read_more()
            if self._find_word(self._words[:1], Output(0)) is not None:
                del self._words[0]
            elif not select.select([self._stdout], [], [], 0)[0]:
                break
        self._end_shell(Output(0))

    def _end_shell(self, output: Output) -> None:
        """End all processes. Repeat the signal until the supervisor reports that its shell has
        ended, since bash sometimes misses a signal."""
        for number, seconds in enumerate(_PATIENCE):
            self._end_all()
            if self._exchange(b"", "", output, seconds, no_word=True) is not None:
                while number and not self._shell_answers():
                    pass  # A repeated signal has also ended the next shell.
                return
        raise Died("the shell of the environment could not be ended")

    def _shell_answers(self) -> bool:
        """Return True if the shell answers, and False if it has ended instead."""
        word = secrets.token_hex(_WORD // 2)
        request = "\0".join((word, "run", ":", "")).encode()
        result = self._exchange(request, word, Output(0), sum(_PATIENCE))
        if result is None:
            raise Died("the shell of the environment does not answer")
        return result[0]

    def _exchange(
        self, request: bytes, word: str, output: Output, seconds: float, *, no_word: bool = False
    ) -> tuple[bool, int] | None:
        """Write `request`, and read until the shell prints `word` and the command's exit code.
        Return (True, exit code), or (False, exit code) if the shell has ended, or None after
        `seconds`. With `no_word`, wait only for the end of the shell."""
        deadline = time.monotonic() + seconds
        unsent = memoryview(request)
        while True:
            ends = ([] if no_word else [word]) + self._words[:1]
            if (result := self._find_word(ends, output)) is not None:
                finished = result[0] == word
                if not finished:
                    del self._words[0]
                return finished, result[1]
            wait = deadline - time.monotonic()
            poll = select.poll()
            poll.register(self._stdout, select.POLLIN)
            if unsent:
                poll.register(self._stdin, select.POLLOUT)
            ready = dict(poll.poll(max(wait, 0.0) * 1000))
            if not ready or wait <= 0:
                return None
            if self._stdin in ready:
                unsent = self._write(unsent)
            if self._stdout in ready:
                self._read_more()

    def _write(self, unsent: memoryview) -> memoryview:
        try:
            return unsent[os.write(self._stdin, unsent[:_PIECE]) :]
        except BlockingIOError:
            return unsent
        except OSError:
            raise Died("it has ended") from None

    def _read_more(self) -> None:
        try:
            piece = os.read(self._stdout, _PIECE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            raise Died("it has ended")
        self._read += piece

    def _find_word(self, ends: list[str], output: Output) -> tuple[str, int] | None:
        """Find one of the words `ends` in the data read so far, and move the data before the word
        to `output`. Return the word and its exit code, or None if no word is complete."""
        for word in ends:
            mark = b"\0" + word.encode() + b" "
            at = self._read.find(mark)
            end = self._read.find(b"\0", at + len(mark)) if at >= 0 else -1
            if end < 0:
                continue
            output.add(self._read[:at])
            code = bytes(self._read[at + len(mark) : end])
            del self._read[: end + 1]
            return word, int(code) if code.isdigit() else 255
        most = len(self._read) - 2 * _WORD
        # Keep what may be the beginning of a mark.
        at = self._read.find(b"\0", max(most, 0))
        upto = len(self._read) if at < 0 else at
        output.add(self._read[:upto])
        del self._read[:upto]
        return None

    def put(self, files: Mapping[str, bytes], seconds: float) -> None:
        import tarfile

        buffer = BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for path, data in files.items():
                entry = tarfile.TarInfo(path.lstrip("/"))
                entry.size, entry.mode = len(data), 0o755 if data.startswith(b"#!") else 0o644
                archive.addfile(entry, BytesIO(data))
        packed = buffer.getvalue()
        result = self.run(
            f"head -c {len(packed)} | tar -x -C {shlex.quote(self._root or '/')}"
            " --no-same-owner -m -f -",
            seconds,
            data=packed,
        )
        if result.code != 0:
            line = result.last_line or result.ended
            raise OSError(f"cannot write files to the environment: {line}")

    def get(self, path: str, most: int, seconds: float) -> bytes | None:
        quoted = shlex.quote(self._root + path)
        result = self.run(
            f"[ -f {quoted} ] && head -c {most} {quoted} 2>/dev/null", seconds, 2 * most
        )
        return result.output if result.code == 0 else None


def last_error(process: "subprocess.Popen[bytes] | None") -> str:
    """Return the last line that a process has written to standard error, without waiting for more;
    `it did not start` if the process has written nothing."""
    if process is None or process.stderr is None:
        return "it did not start"
    os.set_blocking(process.stderr.fileno(), False)
    written = (process.stderr.read() or b"").decode(errors="replace").strip()
    return written.rpartition("\n")[2] or "it did not start"


def close_pipes(process: "subprocess.Popen[bytes]") -> None:
    """Close the pipes of a process that has ended."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        with suppress(OSError):
            if pipe is not None:
                pipe.close()


class InShell:
    """The methods of `Environment`, for environments whose commands run in a `Shell`."""

    _shell: Shell
    built = False

    def exec(self, command: str, seconds: float, keep: int = 65_536) -> Result:
        return self._shell.run(command, seconds, keep)

    def reset(self) -> None:
        self._shell.reset()

    def put(self, files: Mapping[str, bytes], seconds: float = 60.0) -> None:
        self._shell.put(files, seconds)

    def get(self, path: str, most: int = 1 << 20, seconds: float = 10.0) -> bytes | None:
        return self._shell.get(path, most, seconds)
