"""`sweeper compare --checkpoints`: shows the answers of checkpoints to the same prompts, side by
side.

The eval recipe samples each checkpoint in a process of its own. The answers go to the cache
folder: a repeated comparison with the same prompts samples nothing, one with more prompts samples
only the new ones.
"""

import hashlib
import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sweeper import paths
from sweeper.commands.selection import open_registry
from sweeper.common.atomic import atomic_write
from sweeper.common.sanitize import sanitize_lines
from sweeper.errors import EnvironmentFailure, NotFound, UsageError
from sweeper.metrics.rows import parse
from sweeper.results.items import Answer, ItemFile, parse_answers
from sweeper.results.runs import RecordedRun
from sweeper.terminal import print_json, say

if TYPE_CHECKING:
    from sweeper.analysis.side_by_side import Prompt, Sides

BASE = "base"
_RECIPE = "sweeper.recipes.eval"


class _Side(NamedTuple):
    """One of the compared models: a name to show, the base model, and the address of its weights,
    if any."""

    name: str
    model: str | None
    address: str | None


def run_checkpoints(arguments: Namespace) -> int:
    """Sample the checkpoints, and print how their answers differ."""
    if not arguments.prompts:
        raise UsageError("--checkpoints needs --prompts FILE, a JSONL file of prompts")
    if not os.path.isfile(arguments.prompts):
        raise NotFound(f"--prompts {arguments.prompts}: there is no such file")
    if len(arguments.checkpoints) < 2 or arguments.limit < 0:
        raise UsageError("--checkpoints takes two or more; --limit is 0 or more")
    sides = _sides(arguments)
    answers = _ask(sides, arguments)
    from sweeper.analysis.side_by_side import compare_sides, page

    compared = compare_sides(answers)
    if arguments.out:
        try:
            atomic_write(arguments.out, page(compared).encode())
        except OSError as error:
            raise EnvironmentFailure(f"--out {arguments.out}: {error.strerror}") from error
    if arguments.json:
        print_json(compared.document)
    else:
        _show(compared, arguments)
    return 0


def _sides(arguments: Namespace) -> list[_Side]:
    """Return the compared models. A base model is that of the given runs, or the one that
    `--model` names."""
    given = [_Side(name, None, None) if name == BASE else _named(arguments, name)
             for name in arguments.checkpoints]  # fmt: skip
    models = {side.model for side in given if side.model}
    model: str | None = arguments.model or (models.pop() if len(models) == 1 else None)
    if any(side.address is None for side in given) and model is None:
        raise UsageError("base: name its model with --model")
    counts: dict[str, int] = {}
    sides: list[_Side] = []
    for side in given:
        count = counts[side.name] = counts.get(side.name, 0) + 1
        shown = side.name if count == 1 else f"{side.name} ({count})"
        sides.append(_Side(shown, model if side.address is None else side.model, side.address))
    return sides


def _named(arguments: Namespace, name: str) -> _Side:
    """Find a checkpoint by its address, or the last one of a run, by the run's name or folder."""
    if name.startswith("tinker://"):
        return _Side(name, None, name)
    if os.path.isfile(os.path.join(name, "checkpoints.jsonl")):
        return _Side(name, None, os.path.abspath(name))
    run = open_registry(arguments).run(name)
    records = [row for row in run.checkpoint_records() if _address(row)]
    if not records:
        raise NotFound(f"{run.sweep}/{run.name} has recorded no checkpoint")
    return _Side(f"{run.sweep}/{run.name}", _model_of(run), _address(records[-1]))


def _model_of(run: RecordedRun) -> str | None:
    """Return the base model of a run, from the configuration that its program wrote, which
    includes defaults."""
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


def _ask(sides: Sequence[_Side], arguments: Namespace) -> dict[str, list[Answer]]:
    """Sample all models at the same time. Return the answers of each by its name."""
    environment = os.environ | _service()
    folders = {side.name: _folder(side, arguments) for side in sides}
    distinct = list(
        {folders[side.name]: side for side in sides}.values()
    )  # identical ones only once
    running = [
        subprocess.Popen(
            [sys.executable, "-m", _RECIPE, *_settings(side, folders[side.name], arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for side in distinct
    ]
    outputs = [process.communicate()[1] for process in running]
    for side, process, errors in zip(distinct, running, outputs, strict=True):
        if process.returncode:
            last = (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
            raise EnvironmentFailure(f"{side.name}: {last.removeprefix('error: ')}")
    return {name: _read(folder) for name, folder in folders.items()}


def _service() -> dict[str, str]:
    """Return the variables that lead to the service: none if they are set, else those of this
    user's engine."""
    from sweeper.engine import lifecycle

    if os.environ.get("TINKER_BASE_URL") or os.environ.get("TINKER_API_KEY"):
        return {}
    info = lifecycle.find()
    if info is None:
        raise EnvironmentFailure("no engine runs: `sweeper engine start`, or set TINKER_API_KEY")
    return lifecycle.client_environment(info)


def _settings(side: _Side, folder: str, arguments: Namespace) -> list[str]:
    values = {
        "suite": os.path.abspath(arguments.prompts),
        "log_path": folder,
        "grader": arguments.grader,
        "samples": arguments.samples,
        "temperature": arguments.temperature,
        "max_tokens": arguments.max_tokens,
        "model_name": side.model,
        "load_checkpoint_path": side.address,
    }
    return [f"{key}={value}" for key, value in values.items() if value is not None]


def _folder(side: _Side, arguments: Namespace) -> str:
    """Return the cache folder for a model's answers to these prompts."""
    identity = [side.model, side.address, os.path.abspath(arguments.prompts),
            arguments.temperature, arguments.max_tokens]  # fmt: skip
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    return os.path.join(paths.cache(), "answers", digest)


def _read(folder: str) -> list[Answer]:
    path = os.path.join(folder, "items.jsonl")
    with open(path, "rb") as file:
        data = file.read()
    return parse_answers(data, ItemFile("items", "", (), path, len(data)))


def _show(compared: "Sides", arguments: Namespace) -> None:
    from sweeper.analysis.side_by_side import lines

    for line in lines(compared):
        say(line)

    def shown(title: str, prompts: "Sequence[Prompt]") -> None:
        limited = prompts[: arguments.limit] if arguments.limit else prompts
        if limited:
            more = (
                f" ({len(limited)} of {len(prompts)}: --limit)"
                if len(limited) < len(prompts)
                else ""
            )
            print()
            say(f"{title}{more}")
        for one in limited:
            _print_prompt(one, compared.names)

    for one in compared.against:
        shown(f"{one.name} solves, {compared.names[0]} does not", one.gained)
        shown(f"{compared.names[0]} solves, {one.name} does not", one.lost)
    if arguments.full or not compared.against:
        shown("All items", compared.prompts)


def _print_prompt(one: "Prompt", names: Sequence[str]) -> None:
    width = max(len(name) for name in (*names, "prompt"))
    print()
    _print_line("prompt", one.prompt + (f"   [right: {one.right}]" if one.right else ""), width)
    for name, texts in zip(names, one.texts, strict=True):
        for text in texts:
            _print_line(name, text, width)


def _print_line(who: str, text: str, width: int) -> None:
    rows = sanitize_lines(text).splitlines() or [""]
    say(f"  {who:<{width}}  {rows[0]}")
    for row in rows[1:]:
        say(f"  {'':<{width}}  {row}")
