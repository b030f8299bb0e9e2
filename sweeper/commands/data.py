"""`sweeper data`: shows the examples that a run would train on, without starting the run."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sweeper.commands import arguments as shared
from sweeper.commands.checkpoint_names import checkpoint_named, service_environment, service_of
from sweeper.commands.output import agreeing
from sweeper.commands.selection import open_registry
from sweeper.common.sanitize import sanitize_lines
from sweeper.errors import NotFound, SweeperError, UsageError
from sweeper.paths import home
from sweeper.recipe.reference import examples
from sweeper.results.sweeps import SweepRun
from sweeper.sweep.labels import plural
from sweeper.sweep.plan import Plan, Run
from sweeper.terminal import in_colour, print_json

if TYPE_CHECKING:
    from sweeper.recipe.documents import Example, Examples

_MOST = 100
_BOLD, _PLAIN = "\x1b[1;32m", "\x1b[0m"
_MARKS = (
    "\N{LEFT-POINTING DOUBLE ANGLE QUOTATION MARK}",
    "\N{RIGHT-POINTING DOUBLE ANGLE QUOTATION MARK}",
)


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper data`."""
    options = shared.group(verb, "whose data")
    options.add_argument("of", metavar="GRID|RUN", help="a grid's file, or a recorded run")
    options.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="with a grid: replace a base value or an axis",
    )
    options.add_argument("--run", metavar="NAME", help="with a grid: this run (default: the first)")
    options.add_argument(
        "-n", "--examples", type=int, default=5, metavar="N", help="how many examples (default: 5)"
    )
    options.add_argument(
        "--checkpoint",
        metavar="RUN|tinker://...",
        help="for rl and distill: sample answers from this checkpoint, and show them with their "
        "rewards (default for a run: its last checkpoint)",
    )
    shared.trust(verb)
    shared.root(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Print the first examples of a run, with the trained tokens marked."""
    if not 1 <= arguments.examples <= _MOST:
        raise UsageError(f"--examples takes 1 to {_MOST}")
    plan, planned = _planned(arguments)
    recipe = plan.of(planned.stage).recipe
    if recipe.command is not None:
        raise UsageError(
            f"{planned.name} runs a command, and sweeper cannot read the data of a command"
        )
    answer = _examples(arguments, plan, planned)
    if answer is None:
        raise NotFound(
            f"the recipe {recipe.reference} cannot show examples: it has no function "
            f"`examples(values, count)`"
        )
    if arguments.json:
        return print_json({"schema": 1, "run": planned.name, **answer})
    for line in _lines(planned.name, answer, marks=not in_colour()):
        print(line)
    return 0


def _examples(arguments: Namespace, plan: Plan, planned: Run) -> "Examples | None":
    """Return the examples of a run; None if the recipe cannot show examples. The examples include
    answers that are sampled from `--checkpoint`, or else from the run's last checkpoint. If
    sampling fails, leave the answers out, but raise the error if `--checkpoint` was given."""
    recipe, count = plan.of(planned.stage).recipe, arguments.examples
    environment, chosen = _environment(plan), arguments.checkpoint
    name = chosen if chosen or _is_grid(arguments.of) else arguments.of
    lacking = None
    if name is not None:
        try:
            weights = checkpoint_named(arguments, name)
            service = service_environment(weights.service or service_of(plan))
            with_service = {**environment, **service}
            answer = examples(recipe, planned.config, count, with_service, weights.address)
        except SweeperError as error:
            if chosen:
                raise
            lacking = str(error)
        else:
            shown = [] if answer is None else answer["examples"]
            if chosen and answer is not None and not any("samples" in example for example in shown):
                raise UsageError(
                    f"the recipe {recipe.reference} cannot show samples of a checkpoint"
                )
            return answer
    answer = examples(recipe, planned.config, count, environment)
    prompts = answer is not None and not any(example["trained"] for example in answer["examples"])
    if lacking is not None and answer is not None and prompts:
        answer["about"].append(f"without samples: {lacking}")
    return answer


def _is_grid(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) or os.path.isfile(name)


def _planned(arguments: Namespace) -> tuple[Plan, Run]:
    """Return the run whose examples are to be shown, and its plan."""
    if _is_grid(arguments.of):
        from sweeper.planner.plan import plan  # slow to load

        planned = plan(arguments.of, arguments.overrides)
        if arguments.run is None:
            return planned, planned.runs[0]
        for each in planned.runs:
            if arguments.run in (each.name, each.id):
                return planned, each
        raise NotFound(f"{planned.name}: no run {arguments.run!r} (`sweeper plan` lists them)")
    if arguments.overrides or arguments.run:
        raise UsageError(
            "key=value and --run require a grid: the values of a recorded run cannot be changed"
        )
    run = open_registry(arguments, snapshot=True).run(arguments.of)
    if not isinstance(run, SweepRun):
        raise UsageError(
            f"cannot show examples of {run.sweep}/{run.name}: the run was not started by a sweep, "
            "so its recipe is unknown"
        )
    from sweeper.sweep.trust import require

    folder = run.sweep_folder
    plan = folder.read_plan()
    require(plan.recorded, folder.address, agreeing(arguments))
    return plan, next(each for each in plan.runs if each.id == run.id)


def _environment(plan: Plan) -> Mapping[str, str]:
    """Return the environment variables that a run needs to find its tokenizers."""
    grids = plan.launch.env
    if plan.service != "local":
        return grids
    from sweeper.engine import lifecycle  # slow to load

    if lifecycle.find() is None:  # a running engine has already made the cache
        from sweeper.engine.models import usual_models

        usual_models(home())
    return {**grids, **lifecycle.hub_environment(environ={**os.environ, **grids})}


def _lines(name: str, answer: "Examples", *, marks: bool) -> Iterator[str]:
    """Yield the lines of the output. Trained tokens are bold, or between angle quotation marks
    if `marks` is set."""
    lengths = sorted(answer["lengths"])
    count = plural(len(lengths), "example")
    yield f"{name}: {count} of {_span(lengths)} tokens, {answer['held_out']} held out"
    yield from (sanitize_lines(line) for line in answer["about"])
    if any(example["trained"] for example in answer["examples"]):
        how = "between " + " and ".join(_MARKS) if marks else "bold"
        yield f"trained tokens are {how}"
    for number, example in enumerate(answer["examples"], start=1):
        title = f", {example['title']}" if example["title"] else ""
        trained = f", {example['trained']} trained" if example["trained"] else ""
        yield f"\n--- {number}{title}: {plural(example['tokens'], 'token')}{trained}"
        yield _text(example, marks=marks)
        for sample in example.get("samples", ()):
            cut = "" if sample["ended"] else ", cut off"
            yield f"  reward {sample['reward']:g}{cut}: {sanitize_lines(sample['text'])}"


def _span(lengths: Sequence[int]) -> str:
    """Format the range and the median of sorted lengths."""
    if not lengths:
        return "no"
    if lengths[0] == lengths[-1]:
        return str(lengths[0])
    middle = lengths[len(lengths) // 2]
    return f"{lengths[0]} to {lengths[-1]} (median {middle})"


def _text(example: "Example", *, marks: bool) -> str:
    before, after = _MARKS if marks else (_BOLD, _PLAIN)
    return "".join(
        f"{before}{sanitize_lines(text)}{after}" if trained else sanitize_lines(text)
        for text, trained in example["parts"]
    )
