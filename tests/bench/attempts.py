"""Attempts that are ready for their workers, of a command that ends at once."""

from sweeper.backends.base import JobSpec
from sweeper.common.sweeper_argv import worker_command
from sweeper.store.documents import encode
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder, token

__all__ = ["attempts"]


def attempts(folder: str, count: int) -> list[JobSpec]:
    """Return jobs for `count` runs of `true` of a new sweep `s` in `folder`."""
    store = LocalStore(folder)
    sweep = SweepFolder(store, "s")
    store.replace(sweep.plan, encode({}))  # a sweep without a plan in its folder does not exist
    jobs: list[JobSpec] = []
    for number in range(count):
        run, name = f"{number:012x}", f"n={number}"
        job = {
            "schema": 1,
            "run": run,
            "attempt": 1,
            "name": name,
            "seed": None,
            "config": {},
            "recipe": {"cwd": "/", "kind": "command", "command": ["true"]},
            "cwd": folder,
            "settings": {"grace_s": 5},
            "env_file": None,
            "secrets": [],
        }
        store.replace(sweep.job(run, 1), encode(job), durable=False)
        argv = worker_command(sweep.address, token(run, 1))
        jobs.append(JobSpec(token(run, 1), name, argv, sweep.address, {}))
    return jobs
