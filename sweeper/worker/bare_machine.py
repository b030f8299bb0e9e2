"""Builds Python environments on machines that have only Python, and starts jobs there: `python -Es
-c TEXT SETUP MODULE ARGUMENT...`. Uses only the standard library, and functions that are copied
into TEXT."""

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from urllib.parse import quote, unquote

from sweeper.paths import built, home, sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import IO

_FETCH = (
    "import sys, fsspec\n"
    "fs, path = fsspec.core.url_to_fs(sys.argv[1])\n"
    "open(sys.argv[2], 'wb').write(fs.cat_file(path))\n"
)
_TRIES = 4
"""How many times a failing download of the source is tried."""
_MISLEAD = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER")
"""Variables that would make an installer install elsewhere or load other modules."""
_CHOOSES = re.compile(
    r"(PIP|UV)_((EXTRA_|DEFAULT_|NO_)?INDEX(_URL)?|INDEX_STRATEGY|FIND_LINKS|(NO_)?CONFIG(_FILE)?"
    r"|(BUILD_)?CONSTRAINT|OVERRIDE|PRE|PRERELEASE|RESOLUTION|FORK_STRATEGY|EXCLUDE_NEWER"
    r"|((NO|ONLY|PREFER)_BINARY|NO_BUILD)(_PACKAGE)?|NO_DEPS|NO_SOURCES|TORCH_BACKEND)"
)
"""Variables that choose which packages an installer takes, and from where."""
_LOGIN = re.compile(r"//[^/@\s]*@")
_CROSS = "\N{MULTIPLICATION SIGN} "
_FAILS = (_CROSS, "error:", "ERROR:")
_AT = ("Collecting ", "Processing ")
_SAYS_NOTHING = ("╰─> See above", "╰─> [", "│ exit code", "note:", "hint:")
_SHORTEST = 4
"""Secrets shorter than this many characters are not masked, since they occur in other text too
often."""


class BuildError(Exception):
    """An environment cannot be built, or the source cannot be downloaded. The message is one
    line."""


def say(line: str) -> None:
    """Print a line to the job's output."""
    print(f"sweeper: {line}", flush=True)


def build(
    folder: str,
    requirements: str,
    environ: "Mapping[str, str]" = os.environ,
    goes_on: "Callable[[], bool]" = lambda: True,
) -> "str | None":
    """Build an environment in a subfolder of `folder` with the packages in `requirements`, the text
    of a requirements file. Return the path of the environment's interpreter. Reuse an earlier
    environment if its requirements, interpreter and package settings (such as `PIP_INDEX_URL`) were
    the same. Use uv if it is installed, else venv and pip. `environ` has their environment
    variables. Call `goes_on` about once a second, and return None when `goes_on` returns False.
    Raises `BuildError` and `OSError`."""
    key = (requirements, sys.version, sysconfig.get_config_var("SOABI"))
    key += (os.path.realpath(sys.executable), *_choices(environ))
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:24]
    top = os.path.join(folder, digest)
    python, ready = os.path.join(top, "bin", "python"), os.path.join(top, "requirements.txt")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    hold_build(top)
    with open(f"{top}.lock", "ab") as lock:
        if not _is_used(ready) and not _locked(lock, goes_on):
            return None
        if _is_used(ready):
            return python
        # An earlier build that was killed may have left this folder.
        shutil.rmtree(top, ignore_errors=True)
        installer = _Installer(lock, goes_on, environ, requirements)
        try:
            return python if _make(top, requirements, installer) else None
        finally:
            if not os.path.exists(ready):
                # This frees space, since the disk may be full.
                shutil.rmtree(top, ignore_errors=True)


def _choices(environ: "Mapping[str, str]") -> "list[tuple[str, str, list[bytes]]]":
    """Return (name, value, contents) for each environment variable that affects which packages are
    installed. `contents` has the content of each file that the value names. Logins are removed from
    URLs, since a new login does not change the packages."""
    choices: list[tuple[str, str, list[bytes]]] = []
    for name in sorted(filter(_CHOOSES.fullmatch, environ)):
        files = [path for path in environ[name].split() if os.path.isfile(path)]
        held: list[bytes] = []
        for path in files:
            with open(path, "rb") as file:
                held.append(file.read())
        choices.append((name, _LOGIN.sub("//", environ[name]), held))
    return choices


def hold_build(top: str) -> None:
    """Protect the environment or the copy of the source at `top` from `sweeper store gc` until this
    process ends, even after an `exec`. On a disk without locks, `top` is protected only while its
    last use is recent."""
    descriptor = os.open(f"{top}.use", os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(descriptor, True)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError:
        os.close(descriptor)


def _is_used(path: str) -> bool:
    """Set the file's time to now, so that `sweeper store gc` keeps the file. Return whether the
    file exists."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except OSError:  # The file belongs to another user, or the disk is full.
        return os.path.exists(path)
    return True


def _make(top: str, requirements: str, installer: "_Installer") -> bool:
    """Build the environment at `top`. Return False if the installer was stopped."""
    os.mkdir(top)
    part, python = os.path.join(top, "requirements.part.txt"), os.path.join(top, "bin", "python")
    with open(part, "w", encoding="utf-8") as file:
        file.write(requirements)
    uv, begun = shutil.which("uv"), time.monotonic()
    if uv:
        steps = [
            [uv, "venv", "--allow-existing", "--python", sys.executable, top],
            [uv, "pip", "install", "--python", python, "-r", part],
        ]
    elif importlib.util.find_spec("ensurepip") is None:
        raise BuildError(f"{sys.executable} has no ensurepip: add python3-venv or uv to the image")
    else:
        pip = [python, "-I", "-X", "utf8", "-m", "pip"]
        steps = [
            [sys.executable, "-I", "-m", "venv", top],
            [*pip, "install", "--no-input", "--disable-pip-version-check", "-r", part],
        ]
    name = "uv" if uv else "pip"
    say(f"building an environment with {name}: {top}")
    for step in steps:
        if not installer.run(step):
            return False
    os.rename(part, os.path.join(top, "requirements.txt"))
    say(f"built in {time.monotonic() - begun:.0f} s")
    return True


class _Installer:
    """A runner of programs that kills them when `goes_on` returns False. The programs inherit the
    file `lock`. When the output of a program is shown, the values of `${NAME}` variables in
    `requirements` are masked."""

    def __init__(
        self,
        lock: "IO[bytes]",
        goes_on: "Callable[[], bool]",
        environ: "Mapping[str, str]",
        requirements: str = "",
    ) -> None:
        self._lock, self._goes_on = lock, goes_on
        self._environment = {k: v for k, v in environ.items() if k not in _MISLEAD}
        forms: dict[str, str] = {}
        for name in re.findall(r"\$\{(\w+)\}", requirements):
            value = environ.get(name, "")
            shown = (value, quote(value), quote(value, safe=""), unquote(value))
            forms.update((form, "${" + name + "}") for form in shown if len(form) >= _SHORTEST)
        self._hidden = sorted(forms.items(), key=lambda form: (-len(form[0]), form))

    def run(self, command: "list[str]") -> bool:
        """Run a program. Return False if the program was killed because `goes_on` returned False.
        If the program fails, raise `BuildError` with the program's error message."""
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                pass_fds=[self._lock.fileno()],
            )
            if not self._ends(process):
                return False
            output.seek(0)
            printed = output.read().decode("utf-8", "replace")
        if process.returncode:
            for value, name in self._hidden:
                printed = printed.replace(value, name)
            lines = [line.rstrip() for line in printed.splitlines() if line.strip()]
            for line in lines[-20:]:
                print(line, flush=True)
            command_line = " ".join([os.path.basename(command[0]), *command[1:]])[:60]
            ended = f"{command_line} ended with exit code {process.returncode}"
            raise BuildError(_last_word(lines) or ended)
        return True

    def _ends(self, process: "subprocess.Popen[bytes]") -> bool:
        """Wait until a program ends. Return False if it was killed because `goes_on` returned
        False."""
        try:
            while True:
                try:
                    process.wait(1.0)
                except subprocess.TimeoutExpired:
                    if not self._goes_on():
                        return False
                else:
                    return True
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _last_word(lines: "list[str]") -> str:
    """Return the error message in the installer's output as one line of at most 300 characters. If
    there is no error message, return the last line that is not a note or a hint, or ""."""
    lines_left = [line.strip() for line in lines if not line.strip().startswith(_SAYS_NOTHING)]
    fails = [number for number, line in enumerate(lines_left) if line.startswith(_FAILS)]
    if not fails:
        return "".join(lines_left[-1:])[:300]
    word, *more = lines_left[fails[-1] :]
    if not word.endswith(":"):  # uv prints the reason of an error on the next lines.
        more = [line for line in more if line.startswith(("╰─> ", "Caused by:"))]
    if word.startswith(_CROSS) and not more:
        named = [line.partition(" (from ")[0] for line in lines_left if line.startswith(_AT)]
        more = [f"({line})" for line in named[-1:]]
    text = " ".join([word, *more])
    return re.sub(rf"^({_CROSS}|error: *|ERROR: *)|[╰├]─[>▶] *", "", text).strip()[:300]


def _locked(lock: "IO[bytes]", goes_on: "Callable[[], bool]") -> bool:
    """Wait for a lock and take it. Return False if `goes_on` returned False first."""
    announced = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not announced:
                say(f"waiting for another job that builds {os.path.basename(lock.name)[:-5]}")
            announced = True
            if not goes_on():
                return False
            time.sleep(1.0)
        else:
            return True


def _source(folder: str, python: str, url: str, digest: str) -> str:
    """Download sweeper's source from `url` if it was not downloaded before. The interpreter
    `python` has the packages that the store needs. Return the source's folder. Raises `BuildError`
    and `OSError`."""
    top = os.path.join(folder, digest)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    hold_build(top)
    with open(f"{top}.lock", "ab") as lock:
        _locked(lock, lambda: True)
        if _is_used(top):
            return top
        part, archive = f"{top}.part", f"{top}.zip"
        _fetch(python, url, archive, lock)
        with open(archive, "rb") as file:
            data = file.read()
        if not hashlib.sha256(data).hexdigest().startswith(digest):
            raise BuildError(f"{url} is damaged: its SHA-256 does not begin with {digest}")
        shutil.rmtree(part, ignore_errors=True)
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(part)
        os.rename(part, top)
        os.unlink(archive)
    return top


def _fetch(python: str, url: str, archive: str, lock: "IO[bytes]") -> None:
    program = _Installer(lock, lambda: True, os.environ)
    for number in range(_TRIES):
        try:
            program.run([python, "-I", "-c", _FETCH, url, archive])
        except BuildError as error:
            if number == _TRIES - 1:
                raise BuildError(f"{url}: {error}") from None
            time.sleep(2.0**number)
        else:
            return


def _stop(number: int, frame: object) -> None:
    """Exit on a signal, and stop the programs that this process started."""
    del frame
    sys.exit(128 + number)


def main(arguments: "list[str]") -> None:
    """Build what the job needs, and execute the module in `arguments` in place of this process.
    Raises `SystemExit` if that fails."""
    text, module, *rest = arguments
    setup = json.loads(text)
    signal.signal(signal.SIGTERM, _stop)
    top = home()
    try:
        python = build(built(top), setup["requirements"])
        source = _source(sources(top), str(python), setup["source"], setup["digest"])
        paths = [source, os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        os.environ["SWEEPER_SOURCE"] = source
        os.execv(str(python), [str(python), "-P", "-m", module, *rest])
    except (BuildError, OSError) as error:
        sys.exit(f"sweeper: no environment for the job: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
