"""Checks that the quick tests notice missing safeguards. It removes one safeguard at a time from a
copy of the package, and runs the quick tests of that safeguard: `python tests/chaos/mutations.py
[NAME...]`.

Exit code 1 when a mutant survives, or when the tests fail without one.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Mutation(NamedTuple):
    """Replaces `old` by `new` in `file`, where it must occur exactly once; `tests` should fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str


DISK = "tests/chaos/test_disk.py::test_the_power_goes_at_every_system_call"
CALLS = "tests/chaos/test_simulation.py::test_one_fault_at_every_call"
TWICE = "tests/chaos/test_launchers.py::test_submissions_that_go_wrong[twice]"
WORKERS = "tests/chaos/test_workers.py::"
WAKES = "tests/chaos/test_tmux.py::test_a_stopped_worker_wakes_up_beside_a_newer_attempt"

LINKED = """\
        os.link(temporary, path)  # fails if the name exists, and never shows an incomplete file
    finally:
        with suppress(OSError):
            os.unlink(temporary)
"""

MUTATIONS = [
    Mutation(
        "no claim",
        "sweeper/worker/claim.py",
        "        with_retries(lambda: folder.store.create(path, encode(body)), sleep)\n",
        "        with_retries(lambda: folder.store.replace(path, encode(body)), sleep)\n",
        TWICE,
    ),
    Mutation(
        "a claim that does not know itself",
        "sweeper/worker/claim.py",
        ".nonce == nonce",
        ".nonce is None",
        "tests/chaos/test_launchers.py::test_the_reply_to_a_workers_create_is_lost",
    ),
    Mutation(
        "a create that is not exclusive",
        "sweeper/common/atomic.py",
        "        os.link(temporary, path) ",
        '        __import__("shutil").copyfile(temporary, path) ',
        TWICE,
    ),
    Mutation(
        "no sync of a file",
        "sweeper/common/atomic.py",
        "        if durable:\n            os.fsync(descriptor)\n",
        "",
        DISK,
    ),
    Mutation(
        "the folder is synced before the file is named",
        "sweeper/common/atomic.py",
        LINKED + "    sync_folder(os.path.dirname(path))\n",
        "        sync_folder(os.path.dirname(path))\n" + LINKED,
        DISK,
    ),
    Mutation(
        "no sync of the folder",
        "sweeper/common/atomic.py",
        LINKED + "    sync_folder(os.path.dirname(path))\n",
        LINKED,
        DISK,
    ),
    Mutation(
        "no sync of a new folder's parent",
        "sweeper/store/local.py",
        "    sync_folder(parent)\n",
        "",
        DISK,
    ),
    Mutation(
        "submitted without looking for it first",
        "sweeper/scheduler/job_starter.py",
        "        jobs = self._places.ask(place, lambda backend: backend.find(list(opened)))\n",
        "        jobs = {}\n",
        CALLS,
    ),
    Mutation(
        "acknowledged before it is submitted",
        "sweeper/scheduler/submitter.py",
        "        self._places.submit(place, specs)\n",
        "        for run, attempt in attempts.items():\n"
        "            self._run_table.add(run, attempt, Event.SUBMITTED)\n"
        "        self._places.submit(place, specs)\n",
        CALLS,
    ),
    Mutation(
        "lost though the backend knows the job",
        "sweeper/scheduler/lost_workers.py",
        "status.state is JobState.ABSENT and quiet > self._lease_s",
        "quiet > self._lease_s",
        WORKERS + "test_a_stopped_worker_goes_on",
    ),
    Mutation(
        "a newer attempt stops nobody",
        "sweeper/worker/heartbeat.py",
        "            if (attempt + 1, Event.INTENT) in events:\n",
        "            if False:\n",
        WAKES,
    ),
    Mutation(
        "a late job trains beside a newer attempt",
        "sweeper/worker/claim.py",
        "    return folder.store.exists(folder.event(run, attempt + 1, Event.INTENT))\n",
        "    return False\n",
        "tests/e2e/test_worker.py::test_a_late_job_leaves_the_run_to_a_newer_attempt",
    ),
    Mutation(
        "a worker that is killed leaves its recipe running",
        "sweeper/worker/child.py",
        "            os.killpg(groups[-1], signal.SIGKILL)\n",
        "            pass\n",
        "tests/e2e/test_worker.py::test_a_worker_that_is_killed_takes_its_recipe_with_it",
    ),
    Mutation(
        "torn lines are handed on",
        "sweeper/worker/checkpoint_resume.py",
        '        file.write(data[: data.rfind(b"\\n") + 1] if lines else data)\n',
        "        file.write(data)\n",
        WORKERS + "test_a_kill_at_every_byte_of_a_metrics_append",
    ),
    Mutation(
        "a store that vanished is made again",
        "sweeper/store/local.py",
        "        self._see_root()\n",
        "",
        "tests/chaos/test_disk.py::test_a_store_that_vanishes_and_comes_back",
    ),
    Mutation(
        "a pid is taken for its process",
        "sweeper/backends/live_workers.py",
        "if t not in wanted or _lives(p)}\n",
        "if t not in wanted or psutil.pid_exists(p.pid)}\n",
        WORKERS + "test_a_pid_that_is_used_again",
    ),
]


def copy(folder: Path) -> None:
    """Copy the files that the tests need."""
    for name in ("sweeper", "tests"):
        ignore = shutil.ignore_patterns("__pycache__", "bench")
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", folder)


def passes(folder: Path, tests: list[str]) -> bool:
    """Return whether the tests pass in the copy, with the package of the copy."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stdout.decode()[-2000:] + done.stderr.decode()[-2000:])
    if done.returncode and folder.name == "sound":
        print(done.stdout.decode()[-3000:], file=sys.stderr)
    return done.returncode == 0


def mutate(folder: Path, mutation: Mutation) -> None:
    """Apply the change. Raises `ValueError` if the text does not occur exactly once."""
    path = folder / mutation.file
    text = path.read_text()
    if text.count(mutation.old) != 1:
        raise ValueError(f"{mutation.name}: {mutation.file} has changed; mend the mutation")
    path.write_text(text.replace(mutation.old, mutation.new))


def main(names: list[str]) -> int:
    chosen = [m for m in MUTATIONS if not names or m.name in names]
    survived = 0
    with tempfile.TemporaryDirectory() as place:
        sound = Path(place, "sound")
        copy(sound)
        tests = sorted({m.tests for m in chosen})
        well = passes(sound, tests)
        print(f"{'as it is':52}{'passes' if well else 'FAILS'}", flush=True)
        for number, mutation in enumerate(chosen):
            folder = Path(place, str(number))
            shutil.copytree(sound, folder)
            mutate(folder, mutation)
            unnoticed = passes(folder, [mutation.tests])
            survived += unnoticed
            print(f"{mutation.name:52}{'SURVIVES' if unnoticed else 'noticed'}", flush=True)
    return 1 if survived or not well else 0


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; all of them otherwise")
    chosen = parser.parse_args().names
    if unknown := set(chosen) - {mutation.name for mutation in MUTATIONS}:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    sys.exit(main(chosen))
