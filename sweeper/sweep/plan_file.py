"""Reads `sweep.json`, in which a launch stores its plan."""

from sweeper.common import codec
from sweeper.common.json_values import is_table, table_of
from sweeper.errors import Damaged
from sweeper.sweep.launch import Launch
from sweeper.sweep.plan import Plan, Run, Stage


def read(document: object, place: str) -> Plan:
    """Read the plan in the file `place`. Values that an older version did not write get defaults.
    Raises `StoreError`."""
    plan = codec.read(Plan, document, place)
    key = plan.launch.backend.replace("-", "_")
    options = table_of(table_of(document).get("launch")).get(key)
    if key not in Launch._fields and options is not None and not is_table(options):
        raise Damaged(f"{place}: launch.{key}: should be an object")
    _check_ids(plan.runs, place, "runs")
    stages: list[Stage] = []
    for number, stage in enumerate(plan.stages):
        inside = f"stages[{number}]"
        _check_ids(stage.runs, place, f"{inside}.runs")
        given = dict(stage.launch)
        launch = codec.read(Launch, given, place, f"{inside}.launch").document()
        stages.append(stage._replace(launch={key: launch[key] for key in given if key in launch}))
    return plan._replace(stages=tuple(stages))


def _check_ids(runs: tuple[Run, ...], place: str, inside: str) -> None:
    """Raise `Damaged` if two runs have the same id."""
    seen: set[str] = set()
    for number, run in enumerate(runs):
        if run.id in seen:
            path = f"{inside}[{number}].id"
            raise Damaged(f"{place}: {path}: should be unique")
        seen.add(run.id)
