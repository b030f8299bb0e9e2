"""Writes sweeps straight into a store, with a known truth and without a launcher.

Loaded by the `written` fixture of `tests/conftest.py`.
"""

import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

METRIC = {"name": "test/nll", "goal": "minimize", "at": "last"}


def dump(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


class Written:
    """A sweep to be written: `run()` for each run, then `save()`."""

    def __init__(
        self,
        root: Path,
        name: str = "demo",
        axes: Mapping[str, list[Any]] | None = None,
        metric: Mapping[str, str] | None = METRIC,
        **document: Any,
    ) -> None:
        self.root, self.name, self.folder = root, name, root / name
        self.document: dict[str, Any] = {
            "schema": 1,
            "name": name,
            "created": "2026-11-21T01:02:03Z",
            "grid": f"name: {name}\nrecipe: sft\n",
            "grid_path": f"grids/{name}.yaml",
            "overrides": [],
            "recipe": {
                "reference": "sft",
                "kind": "module",
                "module": "recipes.sft",
                "seed_field": "seed",
            },
            "service": "local",
            "metric": None if metric is None else dict(metric),
            "secrets": [],
            "launch": {"backend": "local"},
            "axes": dict(axes or {}),
            "runs": [],
            "provenance": {
                "python": "3.11.7",
                "packages": {"tinker": "0.38.0"},
                "commit": "94849ff",
            },
            **document,
        }

    def run(
        self,
        settings: Mapping[str, Any],
        seed: int | None = 0,
        rows: Sequence[Mapping[str, Any]] | str = (),
        state: str = "succeeded",
        *,
        cell: str | None = None,
        config: Mapping[str, Any] | None = None,
        checkpoints: Sequence[Mapping[str, Any]] = (),
        log: str = "",
        wall_s: float = 60.0,
        attempt: int = 1,
        retired: bool = False,
        **outcome: Any,
    ) -> str:
        """Record one attempt of a run (with its first, also the run itself); returns its id.

        `state`: an event that ends an attempt, or running, submitted, planned, lost. Other keywords
        are keys of the end event (`reason="oom"`, `host="n7"`); a claim has the host `h`."""
        cell = ",".join(f"{k}={v}" for k, v in settings.items()) if cell is None else cell
        name = cell if seed is None else f"{cell},seed={seed}".lstrip(",")
        identity = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        seeded = {} if seed is None else {"seed": seed}
        planned = {"id": identity, "name": name, "cell": cell, "seed": seed}
        planned["config"] = {**settings, **(config or {}), **seeded}
        if retired:
            planned["retired"] = True
        if attempt == 1:
            self.document["runs"].append(planned)
        if state != "planned":
            self._events(identity, attempt, state, wall_s, outcome)
        if state not in ("planned", "submitted"):
            self._files(identity, attempt, rows, checkpoints, log)
        return identity

    def _events(
        self, run: str, attempt: int, state: str, wall_s: float, outcome: Mapping[str, Any]
    ) -> None:
        body = {"schema": 1, "time": "2026-11-21T01:02:04Z"}
        self._event(run, attempt, "intent", body)
        self._event(run, attempt, "submitted", body)
        if state == "submitted":
            return
        started = f"2026-11-21T01:0{attempt}:05Z"
        self._event(run, attempt, "claimed", {**body, "started": started, "host": "h", "pid": 1})
        if state == "running":
            return
        ended = {"started": started, "ended": "2026-11-21T01:09:05Z", "wall_s": wall_s}
        code = {"succeeded": 0, "failed": 1}.get(state)
        defaults = {"code": code, "signal": None, "reason": None, "detail": None, "host": "h"}
        self._event(run, attempt, state, {**body, **defaults, **ended, **outcome})

    def _event(self, run: str, attempt: int, event: str, body: Mapping[str, Any]) -> None:
        path = self.folder / "state" / run / f"{attempt}.{event}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(body))

    def _files(
        self,
        run: str,
        attempt: int,
        rows: Sequence[Mapping[str, Any]] | str,
        checkpoints: Sequence[Mapping[str, Any]],
        log: str,
    ) -> None:
        runs = self.folder / "runs" / f"{run}.{attempt}"
        runs.mkdir(parents=True)
        text = rows if isinstance(rows, str) else dump(rows)
        if text:
            (runs / "metrics.jsonl").write_text(text)
        if checkpoints:
            (runs / "checkpoints.jsonl").write_text(dump(checkpoints))
        attempt_folder = self.folder / "attempts" / f"{run}.{attempt}"
        attempt_folder.mkdir(parents=True)
        if log:
            (attempt_folder / "stdout.log").write_text(log)

    def save(self) -> "Written":
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "sweep.json").write_text(json.dumps(self.document))
        return self


def curve(
    final: float, steps: int = 80, every: int = 20, start: float = 1.8, noise: float = 0.0
) -> list[dict[str, Any]]:
    """Return a training run that ends at `final`: `train/nll` each step, `test/nll`
    now and then."""
    rng = random.Random(f"{final}/{steps}")
    rows: list[dict[str, Any]] = []
    for step in range(steps + 1):
        level = final + (start - final) * math.exp(-4.0 * step / steps)
        row: dict[str, Any] = {"step": step, "train/nll": level + rng.gauss(0, 0.04 + noise)}
        if step % every == 0 or step == steps:
            row["test/nll"] = final if step == steps else level + rng.gauss(0, 0.01 + noise)
        rows.append(row)
    return rows


def three_runs(root: Path) -> tuple[str, str, str]:
    """Write the sweep `s`: two runs that succeeded and one that failed; returns their ids."""
    sweep = Written(root, "s", {"lr": [1, 2]})
    ids = []
    for rate in (1, 2):
        rows = [{"step": 0, "test/nll": 3.0}, {"step": 1, "test/nll": float(rate), "x": "t"}]
        ids.append(sweep.run({"lr": rate}, 0, rows, checkpoints=checkpoint("c")))
    failed = sweep.run({"lr": 3}, 0, "bad\n", "failed", reason="oom")
    sweep.save()
    return ids[0], ids[1], failed


def checkpoint(run: str, step: int = 80, **more: Any) -> list[dict[str, Any]]:
    """Return the record of a finished run."""
    path = f"tinker://{run}/sampler_weights/final"
    return [{"name": "final", "batch": step, "final": True, "sampler_path": path, **more}]


def grid_of_means(
    root: Path,
    means: Mapping[tuple[float, int], float],
    seeds: int = 3,
    spread: float = 0.02,
    name: str = "demo",
    **document: Any,
) -> Written:
    """Write learning rate x rank: each cell has exactly the given mean and, over its seeds, a
    standard deviation of `spread` (0 for one seed). All runs succeed."""
    rates, ranks = (sorted({key[i] for key in means}) for i in (0, 1))
    axes = {"learning_rate": rates, "lora_rank": ranks}
    sweep = Written(root, name, axes, **document)
    middle = (seeds - 1) / 2
    squares = sum((seed - middle) ** 2 for seed in range(seeds))
    scale = spread * math.sqrt((seeds - 1) / squares) if seeds > 1 else 0.0
    for (rate, rank), mean in means.items():
        for seed in range(seeds):
            final = mean + scale * (seed - middle)
            label = f"lr={rate:g},rank={rank},seed={seed}"
            sweep.run(
                {"learning_rate": rate, "lora_rank": rank},
                seed,
                curve(final),
                cell=f"lr={rate:g},rank={rank}",
                checkpoints=checkpoint(label),
                wall_s=30.0 + 4 * rank + seed,
                log="done\n",
            )
    return sweep.save()


def measured(
    root: Path,
    cells: Sequence[tuple[Mapping[str, Any], Sequence[float | None]]],
    axes: Sequence[str] = ("lr",),
    name: str = "demo",
    **document: Any,
) -> Written:
    """Write cells from their settings and the final values of their seeds (NaN: that run diverged,
    None: it has not started). The declared axes hold the values that the cells have there; a cell
    with further settings is an included one, and its values are not declared."""
    declared = [config for config, _ in cells if set(config) <= set(axes)]
    values = {axis: [config[axis] for config in declared if axis in config] for axis in axes}
    sweep = Written(root, name, values, **document)
    for settings, ends in cells:
        for seed, end in enumerate(ends):
            if end is None:
                sweep.run(settings, seed, state="planned")
            else:
                sweep.run(settings, seed, [{"step": 1, "test/nll": end}])
    return sweep.save()


HOSTILE = (
    "</script><script>boom()</script>",
    "<img src=x onerror=boom()>",
    "\"' onmouseover='boom()",
    "{{ 7*7 }}{% raw %}",
    "<a href=javascript:boom()>x</a>",
    "</style></title></pre><iframe srcdoc='<script>boom()</script>'>",
    "\ud800 \x1b[31m \u202e",
)


def hostile(root: Path) -> Written:
    """Write a sweep whose names, values, keys, reasons and logs all try to inject code."""
    sweep = Written(
        root,
        "hostile",
        axes={"<b>axis</b>": list(HOSTILE)},
        metric={"name": "<i>nll</i>", "goal": "minimize", "at": "last"},
        grid="</pre><script>boom()</script>",
        provenance={"<u>k</u>": "</dd><script>boom()</script>"},
    )
    for text in HOSTILE:
        rows = [{"step": s, "<i>nll</i>": 1.0 + s, text: 1} for s in range(3)]
        for seed in range(2):
            rows[-1]["<i>nll</i>"] = 2.0 + seed
            records = [{"name": text, "sampler_path": text, "expires_at": text}]
            sweep.run({"<b>axis</b>": text}, seed, rows, checkpoints=records)
        log = text.replace("\ud800", "")
        sweep.run({"<b>axis</b>": text}, 2, rows, "failed", reason=text, log=log)
    return sweep.save()


def truth(root: Path, seeds: int = 4, name: str = "truth") -> Written:
    """Write a sweep with a known truth, in noise: learning rate by rank. A larger rank is better
    to the end of the axis (64), and the rates 1e-3 and 2e-3 are equally good; the corner of the
    largest rate and the largest rank diverges; and one cell has no result, because its runs
    failed."""
    rates, ranks = [5e-4, 1e-3, 2e-3, 4e-3, 8e-3], [4, 16, 64]
    by_rate = {5e-4: 0.50, 1e-3: 0.20, 2e-3: 0.20, 4e-3: 0.60, 8e-3: 0.80}
    by_rank = {4: 0.90, 16: 0.45, 64: 0.0}
    rng = random.Random(5)
    sweep = Written(
        root,
        name,
        {"learning_rate": rates, "lora_rank": ranks},
        grid=(
            f"name: {name}\nrecipe: sft\nservice: local\n# compared\ngrid:\n"
            "  learning_rate: [5e-4, 1e-3, 2e-3, 4e-3, 8e-3]\n  lora_rank: [4, 16, 64]\n"
            f"seeds: {seeds}\nmetric: {{name: test/nll, goal: minimize}}\n"
        ),
    )
    for rate in rates:
        for rank in ranks:
            for seed in range(seeds):
                config = {"learning_rate": rate, "lora_rank": rank}
                final = 1.0 + by_rate[rate] + by_rank[rank] + rng.gauss(0, 0.02)
                rows = curve(final, start=4.0)
                if (rate, rank) == (8e-3, 64):
                    for row in rows[50:]:
                        row.update({key: math.nan for key in row if key != "step"})
                if (rate, rank) == (4e-3, 16):
                    log = f"step 3\nRuntimeError: rank {rank} does not fit\n"
                    sweep.run(config, seed, rows[:4], "failed", reason="error", log=log)
                else:
                    sweep.run(config, seed, rows, checkpoints=checkpoint(f"{rate}/{rank}/{seed}"))
    return sweep.save()


def rollouts(
    sweep: Written,
    run: str,
    iteration: int,
    rewards: Sequence[Sequence[float]],
    texts: Sequence[str] = ("an answer",),
    prompts: Sequence[str] = ("a question",),
    split: str = "train",
    attempt: int = 1,
    lengths: Sequence[int] = (8,),
    ended: bool = True,
) -> None:
    """Write rollout summaries of an iteration: one group per row of `rewards`; a reward of 1 is
    right."""
    records: list[dict[str, Any]] = []
    for group, rewarded in enumerate(rewards):
        for index, reward in enumerate(rewarded):
            at = len(records)
            logs = {
                "question": prompts[group % len(prompts)],
                "response": texts[at % len(texts)],
                "reference_answer": "the answer",
            }
            step = {
                "step_idx": 0,
                "ob_len": 5,
                "ac_len": lengths[at % len(lengths)],
                "reward": reward,
                "episode_done": True,
                "metrics": {"format": float(ended), "correct": float(reward >= 1)},
                "logs": logs,
            }
            records.append(
                {
                    "schema_version": 1,
                    "split": split,
                    "iteration": iteration,
                    "group_idx": group,
                    "traj_idx": index,
                    "tags": ["t"],
                    "total_reward": reward,
                    "final_reward": 0.0,
                    "trajectory_metrics": {},
                    "steps": [step],
                }
            )
    folder = sweep.folder / "runs" / f"{run}.{attempt}" / f"iteration_{iteration:06d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{split}_rollout_summaries.jsonl").write_text(dump(records))


def hostile_rollouts(root: Path, count: int = 200) -> Written:
    """Write `count` transcripts, keys and names that all try to inject code, in a sweep that has
    everything a report shows."""
    reward = "<img src=x onerror=boom()>/reward"
    sweep = Written(
        root,
        "hostile-rl",
        axes={"</script><script>boom()</script>": list(range(4)), "$x$<i>": [1, 2]},
        metric={"name": reward, "goal": "maximize", "at": "last"},
        grid="grid:\n  '</script><script>boom()</script>': [0, 1, 2, 3]\n  '$x$<i>': [1, 2]\n",
        overrides=["<b>=1"],
    )
    number = 0
    for x in range(4):
        for y in (1, 2):
            for seed in range(2):
                texts = [f"{HOSTILE[(number + i) % len(HOSTILE)]} {number + i}" for i in range(16)]
                rows: list[dict[str, Any]] = [
                    {"step": s, reward: s * x / 9 + seed / 50, "optim/entropy": 1 / (s + 1)}
                    | {
                        f"{HOSTILE[s % len(HOSTILE)]}{number}": 1.0,
                        "time/total": 1,
                        "num_tokens": 9,
                    }
                    for s in range(3)
                ]
                extra = {"</script><script>boom()</script>": x, "$x$<i>": y}
                two = checkpoint(HOSTILE[0], state_path=HOSTILE[1])
                cell = f"{HOSTILE[(x + y) % len(HOSTILE)]}{x}{y}"
                run = sweep.run(extra, seed, rows, cell=cell, checkpoints=two)
                for iteration in (0, 2):
                    groups = [[0.0, 1.0, 0.5, 0.25 * x] for _ in range(4)]
                    rollouts(sweep, run, iteration, groups, texts, texts)
                number += 16
    assert number >= count
    return sweep.save()
