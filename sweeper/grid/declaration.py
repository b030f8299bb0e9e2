"""Declares all sections of a grid."""

import re
from functools import partial

from sweeper.fields.kinds import Choice, Item, Shape, Text, Texts, unread, wrong
from sweeper.fields.nodes import Node, Problems
from sweeper.fields.sections import Field, Nested, Section
from sweeper.grid.alarms import ALARMS, ON_ALARM
from sweeper.grid.baseline import BASELINE
from sweeper.grid.blocks import (
    AXES,
    ENTRIES,
    VALUES,
    ZIP,
    Setting,
    read_axes,
    read_entries,
    read_settings,
    read_zip,
)
from sweeper.grid.budget import BUDGET
from sweeper.grid.conditions import WHEN
from sweeper.grid.launch import ENV_NAME, STAGE_SECTION, read_launch
from sweeper.grid.launch import SECTION as LAUNCH
from sweeper.grid.metric import METRIC
from sweeper.grid.misplaced import belongs
from sweeper.grid.notify import NOTIFY
from sweeper.grid.sampling import RANDOM
from sweeper.grid.seeds import SEEDS
from sweeper.grid.stages import IN_STAGE, stages_schema
from sweeper.grid.wandb import TRACK, WANDB
from sweeper.sweep.names import SWEEP_NAME


def _read_excluded(node: Node, where: str, problems: Problems) -> list[dict[str, Setting]]:
    entries = read_entries(node, where, problems)
    for setting in [s for entry in entries for s in entry.values() if s.refers]:
        problems.add(setting.place, f"{where} takes values, not references")
    return entries


def _read_secrets(node: Node, where: str, problems: Problems) -> tuple[str, ...]:
    if node.items is None:
        wrong(node, where, "a list of variable names", problems)
        return ()
    names: dict[str, None] = {}
    for item in node.items:
        if isinstance(item.value, str) and re.fullmatch(ENV_NAME, item.value):
            names[item.value] = None
        elif isinstance(item.value, str) and "=" in item.value:
            # The text may contain the secret itself, so messages do not repeat it.
            problems.add(item.place, f"{where} takes names only; values come from the environment")
        else:
            problems.add(item.place, f"{where} takes the names of environment variables")
    return tuple(names)


_SECRETS = {"type": "array", "items": {"type": "string", "pattern": f"^{ENV_NAME}$"}}
_PROGRAM = Section(
    Field(
        "name",
        Text(
            SWEEP_NAME,
            "{} is not a valid sweep name (letters, digits, '.', '_' and '-', a letter or "
            "digit first, at most 100)",
        ),
        "The sweep's name (default: the file's stem).",
    ),
    Field(
        "extends",
        Text(),
        "The path of a grid that this grid is based on, relative to this file.",
    ),
    Field(
        "recipe",
        Text(),
        "The program that each run executes: a short name, package.module, package.module:Class"
        " or path/to/file.py.",
        examples=("sft",),
    ),
    Field(
        "command",
        Texts(
            Item({}, numbers=True),
            least=1,
            most=10_000,
            example="a list such as [python, train.py, '--lr={lr}']",
        ),
        "Instead of a recipe: a command and its arguments. {key} is replaced by the value of a "
        "key; there are also {log_path}, {seed}, {run} and {attempt}. A word {key*} is replaced "
        "by the words of a list.",
    ),
    Field(
        "service",
        Choice("local", "tinker", "none"),
        "The model service: local (sweeper's engine), tinker (the hosted service; needs "
        "TINKER_API_KEY) or none.",
        "none",
    ),
    Field("base", Shape(VALUES, read_settings), "Values that all runs share."),
    Field("grid", Shape(AXES, read_axes), "Axes: every combination of their values is a cell."),
    Field(
        "zip",
        Shape(ZIP, read_zip),
        ("Axes that vary together. All axes of a mapping have the same number of values."),
    ),
    RANDOM,
    WHEN,
    Field(
        "exclude",
        Shape(ENTRIES, _read_excluded),
        "Cells to leave out. An entry leaves out each cell that has all values of the entry.",
    ),
    Field(
        "include",
        Shape(ENTRIES, read_entries),
        "Additional cells: one for each entry, with values that override base.",
    ),
    SEEDS,
    Field("metric", Nested(METRIC), "What decides which cell is best."),
    BASELINE,
    Field(
        "secrets",
        Shape(_SECRETS, _read_secrets),
        "Names of variables whose values come from the launcher's environment.",
    ),
    Field("launch", Shape(LAUNCH.schema, read_launch), "How the runs are executed."),
    WANDB,
    TRACK,
    ALARMS,
    ON_ALARM,
    BUDGET,
    NOTIFY,
)


def schema_of_stages(launch: Section) -> dict[str, object]:
    """Return the JSON Schema of `stages`, in which each stage may have its own `launch`."""
    launch_of_stage = Field(
        "launch",
        Nested(launch),
        ("How the stage's runs are executed. Overrides the sweep's settings."),
    )
    sections = {key: _PROGRAM.fields[key].schema() for key in IN_STAGE}
    return stages_schema({**sections, launch_of_stage.name: launch_of_stage.schema()})


SECTION = _PROGRAM.extended(
    Field(
        "stages",
        # The overrides are needed to read the stages, so this section is read later.
        Shape(partial(schema_of_stages, STAGE_SECTION), unread),
        "Instead of a recipe: several grids. Runs of one can continue from runs of another.",
    ),
    Field(
        "order",
        Choice("depth", "breadth"),
        "Which runs start first: depth (runs of later stages) or breadth (runs of earlier stages).",
        "depth",
    ),
    elsewhere=belongs,
)
