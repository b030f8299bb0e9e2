"""Lookup of checkpoints that arguments name, and of the service that samples from them."""

import os
from argparse import Namespace
from collections.abc import Mapping
from typing import NamedTuple

from sweeper.commands.selection import open_registry
from sweeper.errors import EnvironmentFailure, NotFound
from sweeper.metrics.rows import parse
from sweeper.results.runs import RecordedRun
from sweeper.results.service_requests import of_service
from sweeper.results.sweeps import SweepRun
from sweeper.sweep.plan import Plan


class Checkpoint(NamedTuple):
    """A model to sample from. `name` is shown to the user. `model` is the name of the base model.
    `address` is the URL or the folder of the trained weights (None: sample from the base model).
    `service` is the run's model service. `model` and `service` are None if unknown."""

    name: str
    model: str | None
    address: str | None
    service: str | None = None


def checkpoint_named(arguments: Namespace, name: str) -> Checkpoint:
    """Return the checkpoint that `name` means. `name` is the URL of a checkpoint, or the name or
    folder of a run; a run means its last checkpoint. Raises `NotFound`."""
    if name.startswith("tinker://"):
        return Checkpoint(name, None, name)
    if os.path.isfile(os.path.join(name, "checkpoints.jsonl")):
        return Checkpoint(name, None, os.path.abspath(name))
    run = open_registry(arguments, snapshot=True).run(name)
    records = [row for row in run.checkpoint_records() if _address(row)]
    if not records:
        raise NotFound(f"{run.sweep}/{run.name} has recorded no checkpoint")
    service = service_of(run.sweep_folder.read_plan()) if isinstance(run, SweepRun) else None
    return Checkpoint(f"{run.sweep}/{run.name}", model_of(run), _address(records[-1]), service)


def service_of(plan: Plan) -> str | None:
    """Return the model service of a plan's runs; None if they use none."""
    return None if plan.service == "none" else plan.service


def model_of(run: RecordedRun) -> str | None:
    """Return the base model of a run, from the `config.json` that the run's program wrote. None
    if unknown."""
    for folder in reversed(run.folders()):
        rows = parse(run.read(f"{folder}/config.json").replace(b"\n", b" ") + b"\n").rows
        for row in rows:
            model = row.get("model_name")
            if isinstance(model, str):
                return model
    return None


def _address(record: Mapping[str, object]) -> str | None:
    address = record.get("sampler_path") or record.get("state_path")
    return address if isinstance(address, str) else None


def service_environment(service: str | None = None) -> dict[str, str]:
    """Return the environment variables with which the SDK finds a service (`tinker` or `local`).
    Without `service`, return {} if `TINKER_BASE_URL` or `TINKER_API_KEY` is set, else the variables
    for the user's local engine. Raises `UsageError`, `EnvironmentFailure`."""
    from sweeper.engine import lifecycle

    if service is not None:
        url, key = of_service(service)
        if service == "local" and (engine := lifecycle.find()) is not None:
            # These variables include the folder with the engine's tokenizers.
            return lifecycle.client_environment(engine)
        return {"TINKER_BASE_URL": url, "TINKER_API_KEY": key}
    if os.environ.get("TINKER_BASE_URL") or os.environ.get("TINKER_API_KEY"):
        return {}
    info = lifecycle.find()
    if info is None:
        raise EnvironmentFailure(
            "no engine is running: use `sweeper engine start`, or set TINKER_API_KEY"
        )
    return lifecycle.client_environment(info)
