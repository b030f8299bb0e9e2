"""A growing grid: finished runs are not repeated and keep their names."""

import pytest
from support.driven import Driven

from sweeper.planner.plan import plan, repeats_by_default
from sweeper.sweep.states import State

GRID = {
    "name": "s",
    "command": ["echo"],
    "base": {"rank": 8},
    "grid": {"lr": [1]},
    "random": {"samples": 2, "seed": 7, "axes": {"temperature": {"uniform": [0, 1]}}},
    "seeds": 1,
    "launch": {"max_parallel": 100},
}


class Growing(Driven):
    """A sweep over several launches of a growing grid."""

    def launch(self, grid):
        """Record the plan and step; return the ids of the runs that start."""
        self.record(grid)
        before = len(self.backend.submitted)
        self.scheduler().step()
        return {name.partition("-")[0] for name in self.backend.submitted[before:]}

    def files(self, run, attempt):
        return {}

    def names(self):
        return {run.id: run.name for run in self.plan.runs if not run.retired}


pytestmark = pytest.mark.usefixtures("no_sync")


def test_a_growing_grid_runs_only_what_is_new(tmp_path):
    scene = Growing(tmp_path, "s")
    done = scene.launch(GRID)
    assert len(done) == 2
    scene.work()
    grid = GRID
    for change, added in [
        ({"grid": {"lr": [1], "rank": [8, 32]}}, 2),  # an axis over a value of base
        ({"grid": {"lr": [1, 2], "rank": [8, 32]}}, 4),  # a value
        ({"random": {**GRID["random"], "samples": 3}}, 4),  # a sample
        # an axis for some cells
        ({"when": [{"if": {"rank": 8, "lr": 2}, "grid": {"w": [1, 2]}}]}, 6),
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
        scene.work()
        done |= started
        assert scene.launch(grid) == set()
    assert {state.state for state in scene.folder.read_states().values()} == {State.SUCCEEDED}


def test_another_spelling_of_the_same_grid_runs_nothing(tmp_path):
    scene = Growing(tmp_path, "s")
    done = scene.launch(GRID)
    scene.work()
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


def test_giving_a_default_makes_new_runs_with_a_warning():
    takes = {"rank": {"type": "int", "default": 8}, "lr": {"type": "float", "default": 1}}
    earlier = plan({**GRID, "base": {}, "random": None})
    later = plan({**GRID, "base": {}, "random": None, "grid": {"lr": [1], "rank": [8.0, 32]}})
    later = later._replace(recipe=later.recipe._replace(takes=takes))
    assert repeats_by_default(later, earlier) == [
        "1 run will train again: the grid now sets rank explicitly, to the recipe's "
        "default, which gives runs new ids"
    ]
    assert repeats_by_default(later, later) == []
