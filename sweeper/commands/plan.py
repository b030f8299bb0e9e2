"""`sweeper plan`: prints what a launch would start. To save time, `plan_text` is imported while
the recipe's interpreter checks the plan."""

import argparse
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from sweeper.commands import arguments as shared
from sweeper.common.sanitize import sanitize
from sweeper.errors import SweeperError, UsageError
from sweeper.planner.arguments import planned_by
from sweeper.store.opening import default_root, open_store
from sweeper.sweep.metric import lenders
from sweeper.sweep.states import State
from sweeper.terminal import print_json, warn

if TYPE_CHECKING:
    from sweeper.launcher.preview import LaunchPreview


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of `sweeper plan`."""
    shared.grid(verb)
    shared.root(verb)
    shape = shared.group(verb, shared.OUTPUT).add_mutually_exclusive_group()
    shared.flag(
        shape,
        "--manifest",
        "print what a launch would submit, in the backend's format, such as Kubernetes Jobs",
    )
    shared.flag(shape, "--full", "show every run with its whole configuration")
    shared.json(verb)


def run(arguments: argparse.Namespace) -> int:
    """Print what a launch would start, and which runs exist already."""
    if arguments.manifest and arguments.json:
        raise UsageError("use either --manifest or --json")
    planned = planned_by(arguments)
    from sweeper.commands.plan_text import full, short
    from sweeper.launcher.preview import document, survey

    preview = survey(planned, open_store(arguments.root or default_root()))
    if arguments.json:
        return print_json(document(preview))
    for warning in preview.plan.warnings:
        warn(f"warning: {warning}")
    if arguments.manifest:
        return _manifest(preview)
    lines = full(preview) if arguments.full else short(preview)
    sys.stdout.writelines(f"{sanitize(line)}\n" for line in lines)
    if (power := _power(preview, arguments.root or default_root())) is not None:
        print(f"\n{sanitize(power)}")
    return 0


def _power(preview: "LaunchPreview", root: str) -> str | None:
    """Describe the smallest difference between cells that the planned number of seeds can detect.
    Return None if it cannot be estimated (see `before_launch`)."""
    metric = preview.plan.metric
    begun = any(run.state.state is State.SUCCEEDED for run in preview.previews)
    if metric is None or not (begun or lenders(metric.noise)):
        return None
    from sweeper.analysis.comparison.power import before_launch  # slow to load
    from sweeper.results.registry import Registry

    with suppress(SweeperError):
        return before_launch(Registry(root, snapshot=True), preview.plan)
    return None


def _manifest(preview: "LaunchPreview") -> int:
    from sweeper.launcher.preview import manifests, text  # slow to load

    for manifest in manifests(preview):
        sys.stdout.writelines(f"{sanitize(line)}\n" for line in text(manifest))
    return 0
