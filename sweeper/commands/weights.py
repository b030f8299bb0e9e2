"""`sweeper weights`: downloads the weights of a run, or of a sweep's best run."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping

from sweeper.commands import arguments as shared
from sweeper.commands.output import print_json_answer
from sweeper.commands.selection import open_named, run_of
from sweeper.common.atomic import atomic_write
from sweeper.common.json_values import table_of
from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.metrics.rows import Row
from sweeper.results import weights
from sweeper.results.registry import Registry
from sweeper.results.service_requests import of_sweeps
from sweeper.results.sweeps import SweepRun
from sweeper.store.documents import dotted
from sweeper.sweep.labels import plural
from sweeper.terminal import number, say, setting

_CARD = "README.md"


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper weights`."""
    shared.weights(verb)
    form = shared.group(verb, "where and how to save")
    form.add_argument("--to", required=True, metavar="DIR", help="a new folder")
    form.add_argument(
        "--format",
        choices=("adapter", "peft", "merged"),
        default="adapter",
        help="adapter: in the service's format (default); peft: a PEFT adapter for serving; "
        "merged: the whole model with the adapter merged; peft and merged need tinker-cookbook",
    )
    form.add_argument(
        "--python",
        metavar="PATH",
        help="a Python interpreter with tinker-cookbook (default: sweeper's own)",
    )
    form.add_argument(
        "--base",
        metavar="MODEL",
        help="the base model's folder, or its name on the Hugging Face hub",
    )
    form.add_argument(
        "--push",
        metavar="OWNER/NAME",
        help="then push the folder to this repository of the Hugging Face hub, with $HF_TOKEN",
    )
    shared.roots(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Download weights, convert them and write a model card. Push the folder if requested."""
    target = os.path.abspath(arguments.to)
    if not os.path.isdir(os.path.dirname(target)):
        raise UsageError(
            f"--to {arguments.to}: the folder {os.path.dirname(target)} does not exist"
        )
    if arguments.push and not os.environ.get("HF_TOKEN"):
        raise UsageError("--push needs HF_TOKEN: `export HF_TOKEN=...`")
    by_cookbook = arguments.format != "adapter" or arguments.push
    python = weights.find_cookbook(arguments.python) if by_cookbook else ""
    registry, (name,) = open_named(arguments.root, [arguments.of])
    chosen = run_of(registry, name)
    record = weights.choose(chosen, arguments.which)
    if not (arguments.push and _is_made(target, _made_of(record, arguments.format))):
        _make(registry, chosen, record, arguments, target, python)
    if arguments.push:
        _push(target, python, arguments)
    facts = {"run": f"{chosen.sweep}/{chosen.name}", "checkpoint": record.get("name")}
    facts |= {"path": record[weights.STATE], "folder": target, "format": arguments.format}
    if arguments.json:
        document = {"schema": 1, **facts, "pushed": arguments.push}
        return print_json_answer(document, registry.problems)
    say(
        f"{facts['run']}: checkpoint {facts['checkpoint']} is in {arguments.to} (format: "
        f"{arguments.format})"
    )
    if arguments.push:
        say(f"pushed to {arguments.push}")
    return 0


def _made_of(record: Row, form: str) -> str:
    return f"- checkpoint: {record.get('name')}, {record[weights.STATE]} ({form})"


def _is_made(target: str, made_of: str) -> bool:
    """Return whether an earlier command has completed the folder `target`: its model card, which is
    written last, has the line `made_of`."""
    try:
        with open(os.path.join(target, _CARD), encoding="utf-8") as file:
            return made_of in file.read().splitlines()
    except (OSError, UnicodeDecodeError):
        return False


def _make(
    registry: Registry, run: SweepRun, record: Row, arguments: Namespace, target: str, python: str
) -> None:
    """Create the folder `target` with the weights and a model card. Raises `UsageError` if the
    folder exists."""
    adapter = target if arguments.format == "adapter" else f"{target}.adapter"
    for path in (target, adapter):
        if os.path.lexists(path):
            raise UsageError(f"--to {arguments.to}: {path} exists already; name a new folder")
    service = of_sweeps([registry.sweep(run.sweep)])
    made = weights.download(service, str(record[weights.STATE]), adapter)
    if adapter != target:
        base = arguments.base or _folder_of(registry, run, made.base_model)
        paths = {"base_model": base, "adapter_path": adapter, "output_path": target}
        weights.by_cookbook(python, arguments.format, os.environ, **paths)
    facts_of_sweep = [_made_of(record, arguments.format), *_verdict(registry, run), *_cost(run)]
    card = "\n".join(_card(run, made.base_model, facts_of_sweep)) + "\n"
    atomic_write(os.path.join(target, _CARD), card.encode())


def _push(target: str, python: str, arguments: Namespace) -> None:
    """Push the folder to the Hugging Face Hub. Raises `EnvironmentFailure`."""
    try:
        weights.by_cookbook(python, "push", os.environ, model_path=target, repo_id=arguments.push)
    except EnvironmentFailure as error:
        again = f"{arguments.to} is complete: repeat the command to push it again"
        raise EnvironmentFailure(f"{error}; {again}") from error


def _folder_of(registry: Registry, run: SweepRun, base_model: str) -> str:
    """Return the folder of the base model if the run used the local engine and the engine has this
    model. Otherwise return `base_model`."""
    if registry.sweep(run.sweep).plan.service != "local":
        return base_model
    from sweeper import paths
    from sweeper.engine.models import usual_models

    offered = usual_models(paths.home())
    return offered.get(base_model).directory if base_model in offered.names() else base_model


def _verdict(registry: Registry, run: SweepRun) -> Iterator[str]:
    """Yield lines about the rank of the run's cell and the verdict. Yield nothing for a sweep
    without a metric."""
    from sweeper import analysis  # slow to load

    try:
        best = analysis.best(registry, run.sweep)
    except UsageError:
        return
    for place, cell in enumerate(best.cells, 1):
        if cell["cell"] == run.cell:
            interval = ""
            if cell["low"] is not None:
                low, high = number(cell["low"]), number(cell["high"])
                interval = f", 95 % interval {low} to {high}"
            value = f"{number(cell['mean'])} ({plural(cell['n'], 'run')}{interval})"
            yield f"- {best.metric} of its cell: {value}; number {place} of {len(best.cells)}"
            yield f"- verdict on the sweep: {best.label}"


def _cost(run: SweepRun) -> Iterator[str]:
    from sweeper.money import prices
    from sweeper.money.costs import spent

    cost = spent(run, prices.load())
    if tokens := cost.usage.counts.tokens:
        priced = not cost.amount.unpriced
        dollars = f"{prices.money(cost.amount.usd)} dollars ({cost.amount.basis})"
        yield f"- cost: {tokens} tokens, {dollars if priced else 'no price known'}"


def _card(run: SweepRun, base_model: str, facts_of_sweep: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a model card: the lines `facts_of_sweep`, and facts from the records of
    the run."""
    facts = run.record()
    yield "---"
    if base_model:
        yield f"base_model: {base_model}"
    yield "tags: [tinker, lora, sweeper]"
    yield "---"
    yield f"# {run.sweep}/{run.name}"
    yield ""
    yield from facts_of_sweep
    if facts["metric"] and facts["value"] is not None:
        yield f"- {facts['metric']}: {number(facts['value'])}"
    provenance: Mapping[str, object] = run.provenance
    for path, digest in table_of(provenance.get("data")).items():
        yield f"- data: {path}, {digest}"
    for key in ("commit", "dirty", "code", "program", "host", "time"):
        if provenance.get(key) not in (None, "", [], {}):
            yield f"- {key}: {provenance[key]}"
    yield ""
    yield "| setting | value |"
    yield "|---|---|"
    for key, value in dotted(run.config):
        yield f"| {key} | {setting(value)} |".replace("\n", " ")
