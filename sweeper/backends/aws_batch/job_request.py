"""Builds the requests to Batch. Jobs that are submitted together, and whose commands differ only in
their token, can become one array job."""

import os
from collections.abc import Iterator, Mapping, Sequence

from sweeper.backends.aws_batch.client import Aws
from sweeper.backends.aws_batch.definition import (
    called,
    overrides,
    registration,
    retry_strategy,
    timeout,
)
from sweeper.backends.aws_batch.names import Names, as_tag
from sweeper.backends.aws_batch.options import Options, read_options
from sweeper.backends.base import Batches, JobSpec, Manifest
from sweeper.common.sweeper_argv import array_command
from sweeper.sweep.folder import SweepFolder

_MOST_CHILDREN = 10_000
"""Batch's limit on the children of an array job."""


class Submissions:
    """The builder of requests that submit jobs of the sweep in `folder`. `names` makes the jobs'
    names."""

    def __init__(self, options: Options, sweep: str, folder: str, names: Names) -> None:
        self._options, self._sweep, self._names = options, sweep, names
        self._root = os.path.dirname(folder)

    def together(self, jobs: Sequence[JobSpec]) -> Iterator[list[JobSpec]]:
        """Yield the jobs in groups, one for each request. A group of several jobs becomes an array
        job."""
        alike: dict[tuple[str, ...], list[JobSpec]] = {}
        for job in jobs:
            alike.setdefault(tuple(job.argv[:-1]), []).append(job)
        minimum = max(2, self._options.array)
        for argv, group in alike.items():
            # A task of an array finds its token by sweeper's own code, so it needs a Python
            # interpreter.
            python = os.path.basename(argv[0] if argv else "").startswith("python")
            for start in range(0, len(group), _MOST_CHILDREN):
                batch = group[start : start + _MOST_CHILDREN]
                if self._options.array and len(batch) >= minimum and python:
                    yield batch
                else:
                    yield from ([job] for job in batch)

    def request(self, jobs: Sequence[JobSpec], definition: str, region: str) -> dict[str, object]:
        """Return the parameters of the SubmitJob request for one group of jobs."""
        options, first = self._options, jobs[0]
        more: Mapping[str, object] = {}
        if len(jobs) > 1:
            name, table = self._names.array([job.token for job in jobs])
            command = array_command(first.argv[:-1], self._root, table)
            tags = {"sweeper:jobs": str(len(jobs))}
            more = {"arrayProperties": {"size": len(jobs)}}
        else:
            name, command = self._names.single(first.token), list(first.argv)
            tags = {"sweeper:token": first.token, "sweeper:run": as_tag(first.title)}
        return {
            "jobName": name,
            "jobQueue": options.queue,
            "jobDefinition": definition,
            "containerOverrides": overrides(options, command, region),
            "retryStrategy": retry_strategy(options),
            "propagateTags": True,
            "tags": {**options.tags, "sweeper:sweep": as_tag(self._sweep), **tags},
            **timeout(options),
            **more,
        }


def manifests(
    sweep: str, folder: str, plan_options: Mapping[str, object], batches: Batches
) -> Iterator[Manifest]:
    """Yield a preview of each request: first RegisterJobDefinition if the options give an image,
    then each SubmitJob."""
    options = read_options(plan_options)
    region = Aws(options.region, options.profile).region
    names = Names(SweepFolder.at_address(folder))
    names.identity.preview()
    submissions = Submissions(options, sweep, folder, names)
    if options.job_definition is None:
        about = "RegisterJobDefinition, if there is none of this name"
        yield Manifest(about, registration(options))
    for group in (group for jobs in batches for group in submissions.together(jobs)):
        about = group[0].title if len(group) == 1 else f"an array of {len(group)} jobs"
        yield Manifest(f"SubmitJob: {about}", submissions.request(group, called(options), region))
