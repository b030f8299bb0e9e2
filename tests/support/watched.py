"""A sweep on the fake backend, as seen by `sweeper watch`."""

import json
from typing import Any

from sweeper.store.documents import encode, read_json
from sweeper.sweep.folder import SweepFolder
from sweeper.tui.model import RunView
from sweeper.tui.poller import Poller


class Watched:
    """A sweep of three runs (`scene`), with clocks that the test sets. The view finds it in
    `folder`."""

    def __init__(self, scene: Any, folder: SweepFolder | None = None) -> None:
        self.scene, self.now, self.wall = scene, 1000.0, 0.0
        plan: Any = read_json(scene.store, scene.folder.plan)
        plan["metric"] = {"name": "loss", "goal": "minimize", "at": "last"}
        plan["recipe"]["takes"] = {"max_steps": {"default": 10}}
        scene.store.replace(scene.folder.plan, encode(plan))
        self.poller = Poller(folder or scene.folder, clock=lambda: self.now, wall=lambda: self.wall)

    def rows(self, run: str, *steps: int, attempt: int = 1, **more: Any) -> None:
        lines = [json.dumps({"step": s, "loss": 1.0 / (1 + s)} | more) + "\n" for s in steps]
        path = f"{self.scene.folder.log_path(run, attempt)}/metrics.jsonl"
        self.scene.store.append(path, "".join(lines).encode())

    def run(self, number: int = 0, seconds: float = 1.0) -> RunView:
        self.now += seconds
        return self.poller.check().runs[number]
