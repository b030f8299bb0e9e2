"""`wandb:` and `track:` in a grid: variables of runs, and links to W&B."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from sweeper.errors import GridError
from sweeper.grid import parse_grid
from sweeper.planner.plan import plan
from sweeper.sweep.plan import Plan, Run, Wandb, read
from sweeper.sweep.tracking import fields, keyless, link, recorded, run_id, variables

RUN = Run("0123456789ab", "lr=1,seed=0", "lr=1", 0, {"lr": 1})
SECTION = Wandb("p q", tags=("a", "b c"))
NONE = read({"name": "s", "launch": {}, "recipe": {}, "runs": []}, "sweep.json")


def launched(**section: Any) -> Plan:
    wandb = recorded(SECTION._replace(**section), {"WANDB_ENTITY": "us"})
    return NONE._replace(created="2026-01-01T00:00:00Z", wandb=wandb)


def taking(**types: str) -> Plan:
    takes = {name: {"type": type_} for name, type_ in types.items()}
    return launched()._replace(recipe=NONE.recipe._replace(takes=takes))


def test_variables_of_a_run_name_project_group_and_config() -> None:
    environment = variables(launched(), RUN)
    assert (environment["WANDB_PROJECT"], environment["WANDB_ENTITY"]) == ("p q", "us")
    assert (environment["WANDB_RUN_GROUP"], environment["WANDB_NAME"]) == ("s", "lr=1,seed=0")
    assert (environment["WANDB_TAGS"], environment["WANDB_RESUME"]) == ("a,b c", "allow")
    assert "WANDB_MODE" not in environment
    assert json.loads(environment["WANDB_CONFIG"]) == {
        "lr": 1,
        "sweeper": {"sweep": "s", "run": RUN.id, "cell": "lr=1", "seed": 0},
    }
    assert variables(launched(group="g", mode="offline"), RUN).items() >= {
        ("WANDB_RUN_GROUP", "g"),
        ("WANDB_MODE", "offline"),
    }
    assert variables(NONE, RUN) == {} == fields(NONE, RUN)


def test_a_configuration_too_large_for_a_variable_is_left_out() -> None:
    environment = variables(launched(), RUN._replace(config={"text": "x" * 200_000}))
    assert "WANDB_CONFIG" not in environment
    assert environment["WANDB_PROJECT"] == "p q"


def test_the_id_of_a_run_depends_on_run_and_sweep() -> None:
    """A sweep that was removed and launched again is another sweep."""
    ids = {run_id(launched()._replace(**more), run) for run in ("a", "b") for more in (
        {}, {"name": "t"}, {"created": "2027-01-01T00:00:00Z"})}  # fmt: skip
    assert len(ids) == 6
    again = launched(project="other", entity="them", mode="offline")
    assert run_id(again, "a") == run_id(launched(), "a")
    assert variables(launched(), RUN)["WANDB_RUN_ID"] == run_id(launched(), RUN.id)


def test_links_lead_to_the_run_on_wandb() -> None:
    there = f"https://wandb.ai/us/p%20q/runs/{run_id(launched(), 'a')}"
    assert link(launched(), "a") == there
    assert link(launched(entity="them"), "a") == there.replace("/us/", "/them/")
    assert link(launched(mode="offline"), "a") is None
    assert link(NONE, "a") is None
    unknown = recorded(SECTION, {})
    assert link(launched()._replace(wandb=unknown), "a") is None
    self_hosted = recorded(SECTION._replace(entity="e"), {"WANDB_BASE_URL": "https://wb.example/"})
    address = link(launched()._replace(wandb=self_hosted), "a") or ""
    assert address.startswith("https://wb.example/e/p%20q/")


def test_recipes_with_wandb_fields_get_them() -> None:
    planned = taking(wandb_project="str | None", wandb_name="Optional[str]")
    assert fields(planned, RUN) == {"wandb_project": "p q", "wandb_name": "lr=1,seed=0"}
    assert fields(planned, RUN._replace(config={"wandb_name": "mine"})) == {"wandb_project": "p q"}
    assert fields(taking(wandb_name="int"), RUN) == {}
    assert fields(launched(), RUN) == {}


def test_a_missing_api_key_is_reported(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert "WANDB_API_KEY" in (keyless(SECTION, home) or "")
    assert keyless(SECTION, home | {"WANDB_API_KEY": "k"}) is None
    assert keyless(SECTION._replace(mode="offline"), home) is None
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password secret\n")
    assert keyless(SECTION, home) is None
    assert keyless(SECTION, home | {"WANDB_BASE_URL": "https://wb.example"}) is not None


def test_the_section_of_a_grid_is_read() -> None:
    text = "recipe: r\nwandb: {project: p, tags: [a, a, b]}"
    assert parse_grid(text, "g.yaml").wandb == Wandb("p", tags=("a", "b"))
    assert parse_grid("recipe: r", "g.yaml").wandb is None


def test_mistakes_of_the_section_are_refused_at_their_place() -> None:
    text = (
        "recipe: r\nlaunch: {env: {WANDB_MODE: offline, WANDB_RUN_ID: x, WANDB_SILENT: 'true'}}\n"
        "wandb:\n  projct: p\n  tags: ['', 'a,b', 3]\n  mode: on\n"
    )
    with pytest.raises(GridError) as caught:
        parse_grid(text, "g.yaml")
    assert list(caught.value.problems) == [
        "g.yaml:4:3: unknown key 'projct' in wandb; did you mean 'project'?",
        "g.yaml:4:3: wandb needs a project",
        "g.yaml:5:10: wandb.tags: 1 to 64 characters each, no comma",
        "g.yaml:5:14: wandb.tags: 1 to 64 characters each, no comma",
        "g.yaml:5:21: wandb.tags: an integer in the list; quote it to make it a string",
        "g.yaml:6:9: wandb.mode: 'on' is not one of online, offline, disabled",
    ]
    with pytest.raises(GridError) as caught:
        parse_grid(text.partition("wandb:")[0] + "wandb: {project: p}", "g.yaml")
    assert list(caught.value.problems) == [
        "g.yaml:2:9: launch.env: set wandb.mode instead of WANDB_MODE",
        "g.yaml:2:9: launch.env: WANDB_RUN_ID is set by sweeper, since the grid has the section "
        "wandb",
    ]


def test_other_trackers_get_their_variables() -> None:
    text = "recipe: r\ntrack: [trackio, tensorboard, trackio]"
    assert parse_grid(text, "g.yaml").track == ("trackio", "tensorboard")
    alone = NONE._replace(track=("trackio", "tensorboard"))
    assert variables(alone, RUN) == {
        "SWEEPER_TRACK": "trackio,tensorboard",
        "SWEEPER_TRACK_PROJECT": "s",
        "SWEEPER_TRACK_NAME": "lr=1,seed=0",
        "WANDB_MODE": "disabled",  # programs that log to both must not start W&B
    }
    beside = launched()._replace(track=("wandb", "tensorboard"))
    environment = variables(beside, RUN)
    assert (environment["SWEEPER_TRACK"], environment["SWEEPER_TRACK_PROJECT"]) == (
        "tensorboard",
        "p q",
    )
    assert (environment["WANDB_PROJECT"], "WANDB_MODE" in environment) == ("p q", False)
    cookbook = taking(wandb_project="str | None")._replace(wandb=None, track=("trackio",))
    assert fields(cookbook, RUN) == {"wandb_project": "s"}


TRACKERS = {
    "track: []": "2:8: track is an empty list",
    "track: wandb": "2:8: track is a string; it takes a list of wandb, trackio, tensorboard",
    "track: [trakio]": (
        "2:9: track: 'trakio' is not one of wandb, trackio, tensorboard; did you mean 'trackio'?"
    ),
    "track: [wandb]": "2:8: track: wandb needs its section too: add `wandb: {project: NAME}`",
    "track: [trackio]\nwandb: {project: p}": (
        "3:8: there is a section wandb, "
        "but track does not list wandb: add it, or remove the section"
    ),
}


@pytest.mark.parametrize(("lines", "problem"), TRACKERS.items())
def test_mistakes_in_the_list_of_trackers_are_refused_at_their_place(
    lines: str, problem: str
) -> None:
    with pytest.raises(GridError) as caught:
        parse_grid(f"recipe: r\n{lines}", "g.yaml")
    assert list(caught.value.problems) == [f"g.yaml:{problem}"]


def test_a_tracker_that_is_not_installed_is_refused(tmp_path: Path) -> None:
    grid = {"name": "g", "track": ["tensorboard"]}
    python = _bare_python(tmp_path)
    with pytest.raises(GridError, match=f"has no tensorboardX: `{python} -m pip install"):
        plan(grid | {"recipe": "sft", "launch": {"python": python}})
    warnings = plan(grid | {"command": ["true"]}).warnings
    assert any("a command logs to tensorboard by itself" in warning for warning in warnings)


def _bare_python(folder: Path) -> str:
    """Make an interpreter that has the packages of this one, but no tracker."""
    script = folder / "python"
    (folder / "sitecustomize.py").write_text("import sys; sys.modules['tensorboardX'] = None\n")
    script.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_ids_of_runs_do_not_depend_on_tracking(tmp_path: Path) -> None:
    grid = {"name": "s", "command": ["echo", "{x}"], "grid": {"x": [1, 2]}}
    tracked = plan(grid | {"wandb": {"project": "p"}}, validate=False)
    assert [run.id for run in tracked.runs] == [run.id for run in plan(grid, validate=False).runs]
    assert tracked.document()["wandb"]["project"] == "p"
