"""A grid that grows: what is done stays done, under the name that it has."""

from typing import Any

import pytest

from sweeper.launcher.manifest import merge
from sweeper.planner.plan import plan, repeats_by_default
from sweeper.scheduler.context import Context
from sweeper.scheduler.loop import Scheduler
from sweeper.store.documents import encode, read_json
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder, token
from sweeper.sweep.states import Event, State
from sweeper.testing import FakeBackend, FakeClock

GRID = {
    "name": "s",
    "command": ["echo"],
    "base": {"rank": 8},
    "grid": {"lr": [1]},
    "random": {"samples": 2, "seed": 7, "axes": {"temperature": {"uniform": [0, 1]}}},
    "seeds": 1,
    "launch": {"max_parallel": 100},
}


class Scene:
    """A store and a backend, over several launches of a growing grid."""

    def __init__(self, root):
        self.store = LocalStore(str(root))
        self.folder = SweepFolder(self.store, "s")
        self.backend = FakeBackend()
        self.store.replace(self.folder.service, encode({"schema": 1, "env_file": None}))

    def launch(self, grid):
        """Record the plan as a launch does, and start what wants starting: the ids of that."""
        planned = plan(grid)._replace(created="now")
        if self.store.exists(self.folder.plan):
            planned = merge(self.folder.read_plan(), planned)
        self.store.replace(self.folder.plan, encode(planned.document()))
        before = len(self.backend.submitted)
        clock = FakeClock()
        Scheduler(Context(self.folder, self.backend, clock, clock.sleep)).step()
        return {name.partition("-")[0] for name in self.backend.submitted[before:]}

    def finish(self, runs):
        for run in runs:
            for event in (Event.CLAIMED, Event.SUCCEEDED):
                self.store.create(self.folder.event(run, 1, event), encode({"schema": 1}))
            self.backend.end(token(run, 1))

    def names(self):
        runs: Any = read_json(self.store, self.folder.plan)["runs"]
        return {run["id"]: run["name"] for run in runs if not run.get("retired")}


pytestmark = pytest.mark.usefixtures("no_sync")


def test_axes_samples_and_conditions_added_later_rerun_nothing(tmp_path):
    scene = Scene(tmp_path)
    done = scene.launch(GRID)
    assert len(done) == 2
    scene.finish(done)
    grid = GRID
    for change, added in [
        ({"grid": {"lr": [1], "rank": [8, 32]}}, 2),  # an axis over what base gave
        ({"grid": {"lr": [1, 2], "rank": [8, 32]}}, 4),  # a value
        ({"random": {**GRID["random"], "samples": 3}}, 4),  # a sample
        ({"when": [{"if": {"rank": 8, "lr": 2}, "grid": {"w": [1, 2]}}]}, 6),  # an axis for some
        ({"seeds": 2}, 15),  # a replicate
        ({"include": [{"lr": 9}]}, 2),  # a cell
        ({"base": {"rank": 64, "same": 1}, "grid": GRID["grid"]}, 6 + 2),  # other values
        ({"base": GRID["base"], "include": []}, 0),  # and back
    ]:
        grid, names = grid | change, scene.names()
        started = scene.launch(grid)
        assert (len(started), started & done) == (added, set())
        common = names.keys() & scene.names().keys()
        assert {run: names[run] for run in common} == {run: scene.names()[run] for run in common}
        scene.finish(started)
        done |= started
        assert scene.launch(grid) == set()
    assert {state.state for state in scene.folder.read_states().values()} == {State.SUCCEEDED}


def test_another_spelling_of_the_same_reruns_nothing(tmp_path):
    scene = Scene(tmp_path)
    done = scene.launch(GRID)
    scene.finish(done)
    drawn = [run.config["temperature"] for run in plan(GRID).runs]
    again = GRID | {
        "base": {"rank": 8.0},
        "random": None,
        "zip": [{"temperature": drawn}],
        "grid": {"lr": [1.0]},
    }
    assert scene.launch(again) == set()
    again["grid"] = None
    again["when"] = [{"if": {"rank": 8}, "base": {"lr": 1}}]
    assert scene.launch(again) == set()
    assert done == scene.names().keys()


def test_giving_a_default_makes_other_runs_and_is_warned_of():
    takes = {"rank": {"type": "int", "default": 8}, "lr": {"type": "float", "default": 1}}
    earlier = plan({**GRID, "base": {}, "random": None})
    later = plan({**GRID, "base": {}, "random": None, "grid": {"lr": [1], "rank": [8.0, 32]}})
    later = later._replace(recipe=later.recipe._replace(takes=takes))
    assert repeats_by_default(later, earlier) == [
        "runs that differ from recorded ones only in giving rank, with the recipe's default: 1;"
        " they have new ids, and train again"
    ]
    assert repeats_by_default(later, later) == []
