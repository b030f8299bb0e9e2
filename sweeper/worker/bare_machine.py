"""What a job does first where there is Python and nothing else, and how environments of packages
are made there:

    python -Es -c TEXT SETUP MODULE ARGUMENT...

It makes an environment of the packages by which the store is reached, fetches sweeper's own source
from the store, and becomes `MODULE` of that: the worker, which makes the recipe's environment by
the same `build`. `TEXT` is this file (`sweeper/provenance/job_bundle.py` packs it), `SETUP` says in
JSON what to make and to fetch. Standard library only, but for functions that are put into the text.

What is made is kept below the home, under a hash of what it is made of, and made once: others wait
for the lock meanwhile. The file `requirements.txt` of an environment appears last, so that one
whose making was killed is made anew. The installer holds the lock as well, lest it be still at work
then.
"""

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

__all__ = ["BuildError", "build", "main"]

_FETCH = (
    "import sys, fsspec\n"
    "fs, path = fsspec.core.url_to_fs(sys.argv[1])\n"
    "open(sys.argv[2], 'wb').write(fs.cat_file(path))\n"
)
_TRIES = 4
"""How often the source is fetched while the store does not answer."""
_MISLEAD = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER")
"""Variables by which an installer would install elsewhere, or run modules of others."""
_CHOOSES = re.compile(
    r"(PIP|UV)_((EXTRA_|DEFAULT_|NO_)?INDEX(_URL)?|INDEX_STRATEGY|FIND_LINKS|(NO_)?CONFIG(_FILE)?"
    r"|(BUILD_)?CONSTRAINT|OVERRIDE|PRE|PRERELEASE|RESOLUTION|FORK_STRATEGY|EXCLUDE_NEWER"
    r"|((NO|ONLY|PREFER)_BINARY|NO_BUILD)(_PACKAGE)?|NO_DEPS|NO_SOURCES|TORCH_BACKEND)"
)
"""Variables that say which packages an installer takes, and from where."""
_LOGIN = re.compile(r"//[^/@\s]*@")
_CROSS = "\N{MULTIPLICATION SIGN} "
_FAILS = (_CROSS, "error:", "ERROR:")
_AT = ("Collecting ", "Processing ")
_SAYS_NOTHING = ("╰─> See above", "╰─> [", "│ exit code", "note:", "hint:")
_SHORTEST = 4
"""Characters of a value that is not shown; shorter ones stand in much else."""


class BuildError(Exception):
    """What a job needs cannot be made, in one line."""


def say(line: str) -> None:
    """Print a line for whoever reads what the job printed."""
    print(f"sweeper: {line}", flush=True)


def build(
    folder: str,
    requirements: str,
    environ: "Mapping[str, str]" = os.environ,
    goes_on: "Callable[[], bool]" = lambda: True,
) -> "str | None":
    """The interpreter of an environment in `folder` that has what `requirements`, the text of a
    requirements file, names; made by uv where it is there, else by venv and pip, which see the
    variables `environ`. Where one of these chooses other packages, that is another environment.
    `goes_on` is called about once a second; None when it says no. Raises
    `BuildError`, and `OSError`."""
    told = (requirements, sys.version, sysconfig.get_config_var("SOABI"))
    told += (os.path.realpath(sys.executable), *_choices(environ))
    digest = hashlib.sha256(repr(told).encode()).hexdigest()[:24]
    top = os.path.join(folder, digest)
    python, ready = os.path.join(top, "bin", "python"), os.path.join(top, "requirements.txt")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with open(f"{top}.lock", "ab") as lock:
        if not _is_used(ready) and not _locked(lock, goes_on):
            return None
        if _is_used(ready):
            return python
        shutil.rmtree(top, ignore_errors=True)  # of one who was killed at it
        installer = _Installer(lock, goes_on, environ, requirements)
        try:
            return python if _make(top, requirements, installer) else None
        finally:
            if not os.path.exists(ready):
                shutil.rmtree(top, ignore_errors=True)  # a full disk has use for the room


def _choices(environ: "Mapping[str, str]") -> "list[tuple[str, str, list[bytes]]]":
    """The variables that choose packages: with what the files that they name hold (a constraint's),
    and without the login in an address, which may be renewed and chooses none."""
    found: list[tuple[str, str, list[bytes]]] = []
    for name in sorted(filter(_CHOOSES.fullmatch, environ)):
        files = [path for path in environ[name].split() if os.path.isfile(path)]
        held: list[bytes] = []
        for path in files:
            with open(path, "rb") as file:
                held.append(file.read())
        found.append((name, _LOGIN.sub("//", environ[name]), held))
    return found


def _is_used(path: str) -> bool:
    """Put down that a file is used now: `sweeper gc` removes what is not. Returns whether it is
    there."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except OSError:  # another's, or on a disk that is full
        return os.path.exists(path)
    return True


def _make(top: str, requirements: str, installer: "_Installer") -> bool:
    """Make an environment. Returns whether it is there; not if the installer was stopped."""
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
        raise BuildError(f"{sys.executable} has no ensurepip: add python3-venv to the image, or uv")
    else:
        pip = [python, "-I", "-X", "utf8", "-m", "pip"]
        steps = [
            [sys.executable, "-I", "-m", "venv", top],
            [*pip, "install", "--no-input", "--disable-pip-version-check", "-r", part],
        ]
    name = "uv" if uv else "pip"
    say(f"makes an environment with {name}: {top}")
    for step in steps:
        if not installer.run(step):
            return False
    os.rename(part, os.path.join(top, "requirements.txt"))
    say(f"made it in {time.monotonic() - begun:.0f} s")
    return True


class _Installer:
    """Runs programs that hold `lock` as well, until `goes_on` says no. The values of the variables
    that `requirements` names are not shown."""

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
        """Run a program to its end. Returns whether it came to it: it is killed when `goes_on` says
        no. Raises `BuildError` with its last word where it fails."""
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
            what = " ".join([os.path.basename(command[0]), *command[1:]])[:60]
            raise BuildError(_last_word(lines) or f"{what} ended with {process.returncode}")
        return True

    def _ends(self, process: "subprocess.Popen[bytes]") -> bool:
        """Wait for a program. Returns whether it has ended by itself."""
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
    """Why an installer failed, as it says itself, in one line; "" where it says nothing."""
    said = [line.strip() for line in lines if not line.strip().startswith(_SAYS_NOTHING)]
    fails = [number for number, line in enumerate(said) if line.startswith(_FAILS)]
    if not fails:
        return "".join(said[-1:])[:300]
    word, *more = said[fails[-1] :]
    if not word.endswith(":"):  # else uv's: why comes after it
        more = [line for line in more if line.startswith(("╰─> ", "Caused by:"))]
    if word.startswith(_CROSS) and not more:
        named = [line.partition(" (from ")[0] for line in said if line.startswith(_AT)]
        more = [f"({line})" for line in named[-1:]]
    text = " ".join([word, *more])
    return re.sub(rf"^({_CROSS}|error: *|ERROR: *)|[╰├]─[>▶] *", "", text).strip()[:300]


def _locked(lock: "IO[bytes]", goes_on: "Callable[[], bool]") -> bool:
    """Take a lock, when it is free. Returns whether `goes_on` said yes until then."""
    told = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                say(f"waits for another job that makes {os.path.basename(lock.name)[:-5]}")
            told = True
            if not goes_on():
                return False
            time.sleep(1.0)
        else:
            return True


def _source(folder: str, python: str, url: str, digest: str) -> str:
    """The folder with the source that `url` leads to, fetched by `python`, which can reach the
    store. Raises `BuildError`, and `OSError`."""
    top = os.path.join(folder, digest)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with open(f"{top}.lock", "ab") as lock:
        _locked(lock, lambda: True)
        if _is_used(top):
            return top
        part, archive = f"{top}.part", f"{top}.zip"
        _fetch(python, url, archive, lock)
        with open(archive, "rb") as file:
            data = file.read()
        if not hashlib.sha256(data).hexdigest().startswith(digest):
            raise BuildError(f"{url} is damaged: it is not {digest}")
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
    """End, and what was started with it."""
    del frame
    sys.exit(128 + number)


def main(arguments: "list[str]") -> None:
    """Become the module that the arguments name. Returns only by `SystemExit`."""
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
