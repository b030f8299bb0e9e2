"""Builds the calls of sbatch. Jobs with the same resources become an array."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sweeper.backends.base import Batches, JobSpec, Manifest
from sweeper.backends.slurm.options import Options
from sweeper.backends.slurm.sbatch import arguments_of, asked_of, script
from sweeper.backends.slurm.tables import Tables

_TABLE = "TABLE"
"""The placeholder in a preview for the name of a table, since a preview writes no table."""
_END = "END-OF-SCRIPT"


def alike(jobs: Iterable[JobSpec]) -> dict[str, list[JobSpec]]:
    """Group jobs by their resources."""
    groups: dict[str, list[JobSpec]] = {}
    for job in jobs:
        groups.setdefault(repr(sorted(job.resources.items())), []).append(job)
    return groups


def arguments(
    sweep: str, tables: Tables, table: str, jobs: Sequence[JobSpec], options: Options
) -> list[str]:
    """Return sbatch's arguments for the jobs in `table`, which all have the same resources."""
    flags = [
        f"--job-name={jobs[0].token if len(jobs) == 1 else f'{sweep}.{table}'}",
        f"--comment={tables.comment(table, jobs)}",
        f"--chdir={jobs[0].cwd}",
        f"--output={tables.output(table, jobs)}",
        *("--open-mode=append", "--export=NONE"),
        *arguments_of(options),
    ]
    if len(jobs) > 1:
        throttle = options.throttle
        flags.append(f"--array=0-{len(jobs) - 1}" + (f"%{throttle}" if throttle else ""))
    return flags


def manifests(
    sweep: str, folder: str, defaults: Mapping[str, object], batches: Batches
) -> Iterator[Manifest]:
    """Yield the calls of sbatch as shell commands. Without the option `launch.slurm.array`, the
    size of arrays is not limited here, since the cluster is not queried."""
    tables = Tables(folder)
    for group in (group for jobs in batches for group in alike(jobs).values()):
        options = asked_of(defaults, group[0].resources)
        size = options.array or len(group)
        for start in range(0, len(group), size):
            yield _manifest(sweep, tables, group[start : start + size], options)


def _manifest(sweep: str, tables: Tables, jobs: Sequence[JobSpec], options: Options) -> Manifest:
    command = shlex.join(["sbatch", *arguments(sweep, tables, _TABLE, jobs, options)])
    text = script(options.setup, tables.path(_TABLE))
    tasks = [f"# task {index}: {shlex.join(job.argv)}" for index, job in enumerate(jobs)]
    about = f"{len(jobs)} tasks of an array" if len(jobs) > 1 else jobs[0].title
    return Manifest(about, "\n".join((*tasks, f"{command} <<'{_END}'", f"{text}{_END}", "")))
