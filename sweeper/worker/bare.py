"""What a job does first where there is Python and nothing else, and how environments of packages
are made there:

    python -I -c TEXT SETUP MODULE ARGUMENT...

It makes an environment of the packages by which the store is reached, fetches sweeper's own source
from the store, and becomes `MODULE` of that: the worker, which makes the recipe's environment by
the same `build`. `TEXT` is this file (`sweeper/provenance/carried.py` has it shortened), `SETUP`
says in JSON what to make and to fetch. Standard library only, but for what is inlined into the
text.

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
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import zipfile

from sweeper.paths import home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

__all__ = ["BuildError", "build", "main"]

_FETCH = (
    "import sys, fsspec\n"
    "fs, path = fsspec.core.url_to_fs(sys.argv[1])\n"
    "open(sys.argv[2], 'wb').write(fs.cat_file(path))\n"
)
_TRIES = 4
"""How often the source is fetched while the store does not answer."""


class BuildError(Exception):
    """What a job needs cannot be made, in one line."""


def say(line: str) -> None:
    """Print a line for whoever reads what the job printed."""
    print(f"sweeper: {line}", flush=True)


def build(
    folder: str, requirements: str, goes_on: "Callable[[], bool]" = lambda: True
) -> "str | None":
    """The interpreter of an environment in `folder` that has what `requirements`, the text of a
    requirements file, names; made by uv where it is there, else by venv and pip. `goes_on` is
    called about once a second; None when it says no. Raises `BuildError`, and `OSError`."""
    told = (requirements, sys.version, sysconfig.get_config_var("SOABI"))
    told += (os.path.realpath(sys.executable),)
    digest = hashlib.sha256(repr(told).encode()).hexdigest()[:24]
    top = os.path.join(folder, digest)
    python, ready = os.path.join(top, "bin", "python"), os.path.join(top, "requirements.txt")
    os.makedirs(folder, exist_ok=True)
    with open(f"{top}.lock", "ab") as lock:
        if not os.path.exists(ready) and not _locked(lock, goes_on):
            return None
        if os.path.exists(ready):
            return python
        shutil.rmtree(top, ignore_errors=True)  # of one who was killed at it
        try:
            return python if _make(top, requirements, lock, goes_on) else None
        finally:
            if not os.path.exists(ready):
                shutil.rmtree(top, ignore_errors=True)  # a full disk has use for the room


def _make(top: str, requirements: str, lock: "IO[bytes]", goes_on: "Callable[[], bool]") -> bool:
    """Make an environment. Returns whether it is there; not if `goes_on` said no."""
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
        install = ["install", "--no-input", "--disable-pip-version-check", "-r", part]
        steps = [
            [sys.executable, "-I", "-m", "venv", top],
            [python, "-m", "pip", *install],
        ]
    say(f"makes an environment with {'uv' if uv else 'pip'}: {top}")
    for step in steps:
        if not _run(step, os.path.join(top, "log"), lock, goes_on):
            return False
    os.rename(part, os.path.join(top, "requirements.txt"))
    say(f"made it in {time.monotonic() - begun:.0f} s")
    return True


def _run(command: "list[str]", log: str, lock: "IO[bytes]", goes_on: "Callable[[], bool]") -> bool:
    """Run a program to its end. Returns whether it came to it: it is killed when `goes_on` says no.
    Raises `BuildError` with its last line where it fails."""
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lock.fileno()],
        )
    try:
        while True:
            try:
                process.wait(1.0)
                break
            except subprocess.TimeoutExpired:
                if not goes_on():
                    return False
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        with open(log, encoding="utf-8", errors="replace") as file:
            lines = [line.rstrip() for line in file if line.strip()]
        for line in lines[-20:]:
            print(line, flush=True)
        what = " ".join([os.path.basename(command[0]), *command[1:]])[:60]
        told = [line for line in lines if line.startswith("ERROR: ")]  # pip's own; else the last
        told = told or [line for line in lines if not line.startswith(("hint: ", "note: "))]
        last = told[-1].removeprefix("ERROR: ").strip()[:300] if told else ""
        raise BuildError(last or f"{what} ended with {process.returncode}")
    return True


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
    os.makedirs(folder, exist_ok=True)
    with open(f"{top}.lock", "ab") as lock:
        _locked(lock, lambda: True)
        if os.path.isdir(top):
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
    for number in range(_TRIES):
        try:
            _run([python, "-I", "-c", _FETCH, url, archive], f"{archive}.log", lock, lambda: True)
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
    if sys.version_info < (3, 11):  # noqa: UP036 - an image may have any
        sys.exit(f"sweeper: needs Python 3.11, and {sys.executable} is {sys.version.split()[0]}")
    signal.signal(signal.SIGTERM, _stop)
    top = home()
    try:
        python = build(os.path.join(top, "environments"), setup["requirements"])
        source = _source(
            os.path.join(top, "sources"), str(python), setup["source"], setup["digest"]
        )
        paths = [source, os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        os.environ["SWEEPER_SOURCE"] = source
        os.execv(str(python), [str(python), "-P", "-m", module, *rest])
    except (BuildError, OSError) as error:
        sys.exit(f"sweeper: no environment for the job: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
