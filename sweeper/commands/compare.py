"""`sweeper compare`: shows how runs differ, compares two sweeps cell by cell or two cells seed
by seed, or shows the answers of several checkpoints to the same prompts."""

import hashlib
import json
import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sweeper import paths
from sweeper.commands import arguments as shared
from sweeper.commands.checkpoint_names import Checkpoint, checkpoint_named, service_environment
from sweeper.commands.output import print_json_answer
from sweeper.commands.selection import chosen, open_named, open_registry
from sweeper.common.atomic import atomic_write
from sweeper.common.sanitize import sanitize_lines
from sweeper.errors import EnvironmentFailure, NotFound, UsageError
from sweeper.metrics.objective import last_values
from sweeper.results.items import Answer, ItemFile, parse_answers
from sweeper.results.origins import differences
from sweeper.results.problems import tell_problems
from sweeper.results.registry import Registry
from sweeper.results.runs import RecordedRun
from sweeper.results.selectors import named
from sweeper.sweep.labels import plural
from sweeper.terminal import print_json, print_table, say, setting

if TYPE_CHECKING:
    from sweeper.analysis.side_by_side import Prompt, Sides


BASE = "base"
_RECIPE = "sweeper.recipes.eval"


def run_checkpoints(arguments: Namespace) -> int:
    """Sample answers from the checkpoints, and print how the answers differ."""
    if not arguments.prompts:
        raise UsageError("--checkpoints needs --prompts FILE, a JSONL file of prompts")
    if not os.path.isfile(arguments.prompts):
        raise NotFound(f"--prompts {arguments.prompts}: no such file")
    if len(arguments.checkpoints) < 2 or arguments.limit < 0:
        raise UsageError("--checkpoints takes two or more names, and --limit 0 or more")
    answers = _ask(_sides(arguments), arguments)
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


def _sides(arguments: Namespace) -> list[Checkpoint]:
    """Return the models to compare. The argument `base` means the model of `--model`, or else the
    base model that the other arguments have in common. Raises `UsageError` if `base` is given and
    there is no such model."""
    checkpoints = [
        Checkpoint(name, None, None) if name == BASE else checkpoint_named(arguments, name)
        for name in arguments.checkpoints
    ]
    models = {side.model for side in checkpoints if side.model}
    model: str | None = arguments.model or (models.pop() if len(models) == 1 else None)
    if any(side.address is None for side in checkpoints) and model is None:
        raise UsageError("`base` needs --model, the name of the base model")
    counts: dict[str, int] = {}
    sides: list[Checkpoint] = []
    for side in checkpoints:
        count = counts[side.name] = counts.get(side.name, 0) + 1
        shown = side.name if count == 1 else f"{side.name} ({count})"
        sides.append(side._replace(name=shown, model=model if side.address is None else side.model))
    return sides


def _ask(sides: Sequence[Checkpoint], arguments: Namespace) -> dict[str, list[Answer]]:
    """Sample answers from all models in parallel. Return {model's name: answers}."""
    services = {side.service for side in sides if side.service}
    # The service of the runs also serves base models and addresses.
    shared_service = services.pop() if len(services) == 1 else None
    folders = {side.name: _folder(side, arguments) for side in sides}
    # Models that are named twice are sampled once.
    distinct = list({folders[side.name]: side for side in sides}.values())
    running = [
        subprocess.Popen(
            [sys.executable, "-m", _RECIPE, *_settings(side, folders[side.name], arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | service_environment(side.service or shared_service),
        )
        for side in distinct
    ]
    outputs = [process.communicate()[1] for process in running]
    for side, process, errors in zip(distinct, running, outputs, strict=True):
        if process.returncode:
            last = (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
            raise EnvironmentFailure(f"{side.name}: {last.removeprefix('error: ')}")
    return {name: _read(folder) for name, folder in folders.items()}


def _settings(side: Checkpoint, folder: str, arguments: Namespace) -> list[str]:
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


def _folder(side: Checkpoint, arguments: Namespace) -> str:
    """Return the folder that caches a model's answers to the prompts."""
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

    def print_prompts(title: str, prompts: "Sequence[Prompt]") -> None:
        limited, every = prompts[: arguments.limit or None], len(prompts)
        if limited:
            more = f" ({len(limited)} of {every}: --limit)" if len(limited) < every else ""
            print()
            say(f"{title}{more}")
        for prompt in limited:
            _print_prompt(prompt, compared.names)

    for side in compared.against:
        print_prompts(f"{side.name} solves, {compared.names[0]} does not", side.gained)
        print_prompts(f"{compared.names[0]} solves, {side.name} does not", side.lost)
    if arguments.full or not compared.against:
        print_prompts("All items", compared.prompts)


def _print_prompt(prompt: "Prompt", names: Sequence[str]) -> None:
    width = max(len(name) for name in (*names, "prompt"))
    print()
    right = f"   [right: {prompt.right}]" if prompt.right else ""
    _print_line("prompt", prompt.prompt + right, width)
    for name, texts in zip(names, prompt.texts, strict=True):
        for text in texts:
            _print_line(name, text, width)


def _print_line(who: str, text: str, width: int) -> None:
    rows = sanitize_lines(text).splitlines() or [""]
    say(f"  {who:<{width}}  {rows[0]}")
    for row in rows[1:]:
        say(f"  {'':<{width}}  {row}")


_MOST = 12
_MISSING = object()


def compare_runs(registry: Registry, arguments: Namespace) -> int:
    """Print how runs differ, in tables with a row for each key and a column for each run."""
    runs = _as_typed(chosen(registry, arguments), arguments.runs)
    if len(runs) < 2:
        raise UsageError(
            f"compare needs two runs or more, but {plural(len(runs), 'run matches', 'runs match')}"
        )
    if len(runs) > _MOST and not arguments.json:
        raise UsageError(
            f"{len(runs)} runs match, and compare shows at most {_MOST}: narrow with "
            "--where, or use --json"
        )
    roots = len({run.root for run in runs}) > 1
    names = [f"{run.root}/" * roots + f"{run.sweep}/{run.name}" for run in runs]
    config = _rows([run.config for run in runs], arguments.all)
    states = [{"state": run.state.value, "reason": run.outcome.reason} for run in runs]
    points = [last_values(run.readable_history.rows) for run in runs]
    last = [{key: point["value"] for key, point in by_key.items()} for by_key in points]
    metrics = _rows(last, arguments.all)
    executed: list[list[object]] = [
        [each.title, *map(each.label, runs)] for each in differences(runs)
    ]
    if arguments.json:
        document = {"schema": 1, "runs": [run.record() for run in runs]}
        keyed = {"config": config, "state": _rows(states, True), "last_metrics": metrics}
        keyed["executed"] = executed
        document |= {k: {key: v for key, *v in rows} for k, rows in keyed.items()}
        return print_json_answer(document, registry.problems)
    for title, rows, shown in (("configuration", config, _set),
                               ("code, packages and data", executed, _shown),
                               ("state", _rows(states, arguments.all), _shown),
                               ("last metrics", metrics, _shown)):  # fmt: skip
        if rows:
            print(title)
            print_table(("key", *names), [(key, *map(shown, values)) for key, *values in rows])
            print()
    if not (config or metrics or executed):
        print("the runs have the same configuration and the same last metrics")
    return tell_problems(registry.problems)


def _as_typed(runs: list[RecordedRun], selectors: Sequence[str]) -> list[RecordedRun]:
    """Return the runs in the order in which the user named them."""
    typed = [run for selector in selectors for run in named(runs, selector)]
    return list({id(run): run for run in typed}.values()) or runs


def _rows(values: Sequence[Mapping[str, object]], everything: bool) -> list[list[object]]:
    """Return a row for each key: the key, then each run's value. Keys with the same value in all
    runs are left out, unless `everything` is set."""
    rows: list[list[object]] = []
    for key in dict.fromkeys(key for each in values for key in each):
        cells = [each.get(key, _MISSING) for each in values]
        texts = {"" if v is _MISSING else json.dumps(v, sort_keys=True, default=str) for v in cells}
        if everything or len(texts) > 1:
            rows.append([key, *(None if value is _MISSING else value for value in cells)])
    return rows


def _set(value: object) -> object:
    return None if value is None else setting(value)


def _shown(value: object) -> object:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper compare`."""
    shared.group(verb, "what to compare").add_argument(
        "runs",
        nargs="*",
        default=[],
        metavar="NAME",
        help="two sweeps, two cells (sweep/cell), or any runs: names, globs, ids, or sweeps",
    )
    shared.judge(verb, "two sweeps or two cells")
    shared.select(verb, "runs")
    shared.flag(
        shared.group(verb, "runs"), "--all", "also show keys that have the same value in all runs"
    )
    _add_checkpoint_arguments(verb)
    shared.roots(verb)
    shared.json(verb)


def _add_checkpoint_arguments(verb: ArgumentParser) -> None:
    checkpoints = shared.group(verb, "checkpoints side by side")
    checkpoints.add_argument(
        "--checkpoints",
        nargs="+",
        metavar="CHECKPOINT",
        help="two or more of: a run, a folder of a run, a tinker:// address, base; each one is "
        "compared with the first",
    )
    checkpoints.add_argument("--model", help="the model that `base` stands for")
    checkpoints.add_argument(
        "--prompts",
        metavar="FILE",
        help="a JSONL file of prompts, in the format of the eval recipe",
    )
    checkpoints.add_argument(
        "--grader", help="the grader for prompts that do not name a grader (default: exact)"
    )
    checkpoints.add_argument(
        "-n",
        "--limit",
        type=int,
        default=10,
        metavar="N",
        help="how many items to show in each list (default: 10; 0: all)",
    )
    shared.flag(checkpoints, "--full", "show all prompts, not only those that differ")
    checkpoints.add_argument("--out", metavar="FILE", help="also write an HTML page")
    sampling = shared.group(verb, "how to sample from checkpoints")
    sampling.add_argument(
        "--samples", type=int, default=1, metavar="N", help="answers to each prompt (default: 1)"
    )
    sampling.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="sampling temperature (default: 0)",
    )
    sampling.add_argument(
        "--max-tokens",
        type=int,
        default=64,
        metavar="N",
        help="longest answer in tokens (default: 64)",
    )


def run(arguments: Namespace) -> int:
    """Show how runs differ, or compare two sweeps, two cells, or checkpoints."""
    if arguments.checkpoints:
        if arguments.runs:
            raise UsageError(
                "compare takes either names of runs, cells or sweeps, or --checkpoints"
            )
        return run_checkpoints(arguments)
    if not (arguments.runs or arguments.where or arguments.state):
        raise UsageError("name two sweeps, two cells or several runs, or use --checkpoints")
    registry = open_registry(arguments, snapshot=True)
    if _are_runs(registry, arguments):
        return compare_runs(registry, arguments)
    from sweeper import analysis

    registry, (a, b) = open_named(arguments.root, arguments.runs, registry)
    comparison = analysis.versus(
        registry, a, b, metric=arguments.metric, goal=arguments.goal, at=arguments.at
    )
    if arguments.json:
        print_json(comparison.document)
    else:
        print(comparison.text)
    return tell_problems(registry.problems)


def _are_runs(registry: Registry, arguments: Namespace) -> bool:
    """Return True to compare single runs, False to compare two sweeps or two cells. `--where`,
    `--state` and `--all` imply single runs. `--metric`, `--goal`, `--at` imply sweeps or cells."""
    if len(arguments.runs) != 2 or arguments.where or arguments.state or arguments.all:
        return True
    if arguments.metric or arguments.goal or arguments.at:
        return False
    try:
        return all(len(registry.choose([name])) == 1 for name in arguments.runs)
    except NotFound:
        return False
