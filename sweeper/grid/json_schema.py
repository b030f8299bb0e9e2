"""Makes the JSON Schema of grids for editors (`sweeper init --schema`), from the declaration that
also reads grids."""

from sweeper.backends import backend_names
from sweeper.common.json_values import table_of
from sweeper.fields.sections import Nested, Section, or_null
from sweeper.grid import alarms, blocks, notify, sampling, seeds, stages, wandb
from sweeper.grid.declaration import SECTION, schema_of_stages
from sweeper.grid.launch import SECTION as LAUNCH
from sweeper.grid.launch import STAGE_SECTION as STAGE_LAUNCH
from sweeper.grid.launch import backend_fields, stage_backend_fields
from sweeper.grid.metric import METRIC
from sweeper.grid.stages import IN_STAGE

_HAS_STAGES: dict[str, object] = {
    "required": ["stages"],
    "properties": {"stages": {"type": "object"}},
}
_GIVEN: dict[str, object] = {"not": {"type": "null"}}


def grid_schema() -> dict[str, object]:
    """Return the JSON Schema of a grid, with the options of every installed backend."""
    fields = dict(SECTION.fields)
    launch = LAUNCH.extended(*backend_fields())
    launch.fields["backend"] = launch.fields["backend"]._replace(examples=tuple(backend_names()))
    fields["launch"] = fields["launch"]._replace(kind=Nested(launch))
    # In a grid that extends another, null removes an axis of the other grid.
    axes = blocks.AXES["additionalProperties"]
    partly = {**blocks.AXES, "additionalProperties": {"anyOf": [axes, {"type": "null"}]}}
    schema = Section(*fields.values()).schema()
    properties = table_of(schema["properties"])
    table_of(properties["grid"]).update(partly)
    in_stage = STAGE_LAUNCH.extended(*stage_backend_fields())
    table_of(properties["stages"]).update(or_null(schema_of_stages(in_stage)))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A sweeper grid",
        "description": "One YAML file that describes the runs of a sweep. `sweeper plan` "
        "checks it completely, including the recipe's own fields.",
        **schema,
        "not": {
            "required": ["recipe", "command"],
            "properties": {"recipe": _GIVEN, "command": _GIVEN},
        },
        "if": {"required": ["extends"], "properties": {"extends": {"type": "string"}}},
        "else": _whole(),
        "allOf": [
            {"if": _HAS_STAGES, "then": {"properties": {key: {"type": "null"} for key in IN_STAGE}}}
        ],
    }


def _whole() -> dict[str, object]:
    """Return the JSON Schema of the parts that a grid without `extends` must contain."""
    return {
        "anyOf": [
            {"required": ["recipe"], "properties": {"recipe": {"type": "string"}}},
            {"required": ["command"], "properties": {"command": {"type": "array"}}},
            _HAS_STAGES,
        ],
        "properties": {
            "grid": blocks.AXES,
            "random": sampling.WHOLE,
            "seeds": seeds.WHOLE,
            "metric": {"if": {"type": "object"}, "then": METRIC.whole()},
            "wandb": wandb.WHOLE,
            "on_alarm": alarms.WHOLE,
            "notify": notify.WHOLE,
            "stages": stages.WHOLE,
        },
    }
