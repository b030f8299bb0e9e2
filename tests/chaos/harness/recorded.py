"""Two places with sweeps of the same names, and random changes: records are written, extended,
replaced, copied over, damaged, repaired and removed.

The files are similar (values of one width, few names, restored file times), so that often only
their contents differ.
"""

import json
import os
import random
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sweeper.errors import NotFound
from sweeper.store.opening import open_store

__all__ = ["Place", "World", "folder_place", "memory_place"]

SWEEPS = ("s", "t")
RUNS = [f"{number:012x}" for number in range(3)]
_LONG_AGO = 1_700_000_000_000_000_000
_ENDS = ("succeeded", "failed", "preempted", "cancelled")


class Place(ABC):
    """A root, and its files by their relative paths."""

    root: str

    @abstractmethod
    def files(self) -> list[str]: ...

    @abstractmethod
    def read(self, path: str) -> bytes: ...

    @abstractmethod
    def write(self, path: str, data: bytes, rng: random.Random) -> None:
        """Write in a random way."""

    @abstractmethod
    def remove(self, path: str) -> None: ...

    @abstractmethod
    def age(self) -> None:
        """Make all files old, with one time."""

    @abstractmethod
    def settle(self) -> None:
        """Make later writes have later file times than earlier ones."""


class _Folder(Place):
    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, str(folder)

    def files(self) -> list[str]:
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.folder)) for path in paths)

    def read(self, path: str) -> bytes:
        return (self.folder / path).read_bytes()

    def write(self, path: str, data: bytes, rng: random.Random) -> None:
        full = self.folder / path
        before = full.stat() if full.exists() else None
        full.parent.mkdir(parents=True, exist_ok=True)
        how = rng.choice(("in place", "replaced", "removed before"))
        if how == "replaced":
            other = full.with_name(f".new-{full.name}")
            other.write_bytes(data)
            other.replace(full)
        else:
            if how == "removed before" and before:
                full.unlink()
            full.write_bytes(data)
        if rng.random() < 0.5:
            then = before.st_mtime_ns if before else _LONG_AGO
            os.utime(full, ns=(then, then))

    def remove(self, path: str) -> None:
        (self.folder / path).unlink()
        for above in (self.folder / path).parents:
            if above == self.folder:
                break
            with suppress(OSError):
                above.rmdir()

    def age(self) -> None:
        for path in self.files():
            os.utime(self.folder / path, ns=(_LONG_AGO, _LONG_AGO))

    def settle(self) -> None:
        probe = self.folder.with_name(f".probe-{self.folder.name}")
        probe.write_bytes(b"")
        first = now = probe.stat().st_ctime_ns
        while now == first:
            probe.write_bytes(b"")
            now = probe.stat().st_ctime_ns


class _Memory(Place):
    """A place that is not on a disk: it is read like a remote store."""

    def __init__(self, root: str) -> None:
        self.root, self._store = root, open_store(root)

    def files(self) -> list[str]:
        return sorted(self._store.names(""))

    def read(self, path: str) -> bytes:
        return self._store.read(path)

    def write(self, path: str, data: bytes, rng: random.Random) -> None:
        if rng.random() < 0.3:
            self._store.remove([path])
        self._store.replace(path, data)

    def remove(self, path: str) -> None:
        self._store.remove([path])

    def age(self) -> None:
        """Do nothing: times are the store's."""

    def settle(self) -> None:
        """Do nothing: every write has its own time."""


def folder_place(folder: Path) -> Place:
    """Make a folder as a place."""
    folder.mkdir(parents=True)
    return _Folder(folder)


def memory_place(root: str) -> Place:
    """Make a root that begins with `memory://`."""
    return _Memory(root)


class World:
    """The places, and their random changes, which `rng` determines."""

    def __init__(self, places: list[Place], rng: random.Random) -> None:
        self.places, self.rng = places, rng
        self._whole: dict[tuple[int, str], bytes] = {}
        self._writer = _Writer(rng)
        for place in places:
            self._launch(place)

    def step(self) -> str:
        """Make a change; returns its description."""
        happenings: list[tuple[int, Callable[[Place], object]]] = [
            (3, self._launch),
            (2, self._launch_anew),
            (1, self._remove_sweep),
            (2, self._copy_sweep),
            (1, self._rename_sweep),
            (1, self._swap),
            (5, self._grow),
            (4, self._edit),
            (5, self._damage),
            (5, self._mend),
            (2, self._remove_file),
            (3, self._record),
            (2, self._loose),
            (3, lambda place: place.age()),
        ]
        place = self.rng.choice(self.places)
        [happening] = self.rng.choices([h for _, h in happenings], [w for w, _ in happenings])
        detail = happening(place)
        return f"{getattr(happening, '__name__', 'age').strip('_')} {detail or ''} in {place.root}"

    def _files(self, place: Place, *ends: str) -> list[str]:
        return [path for path in place.files() if not ends or path.endswith(ends)]

    def _launch(self, place: Place) -> str:
        """Write a sweep, over any existing one."""
        sweep = self.rng.choice(SWEEPS)
        for path, data in self._writer.sweep(sweep).items():
            place.write(path, data, self.rng)
        return sweep

    def _launch_anew(self, place: Place) -> str:
        sweep = self.rng.choice(SWEEPS)
        self._clear(place, f"{sweep}/")
        for path, data in self._writer.sweep(sweep).items():
            place.write(path, data, self.rng)
        return sweep

    def _remove_sweep(self, place: Place) -> str:
        sweep = self.rng.choice(SWEEPS)
        self._clear(place, f"{sweep}/")
        return sweep

    def _clear(self, place: Place, prefix: str) -> None:
        if isinstance(place, _Folder):
            shutil.rmtree(place.folder / prefix, ignore_errors=True)
            return
        for path in self._files(place):
            if path.startswith(prefix):
                place.remove(path)

    def _copy_sweep(self, place: Place) -> str:
        """Copy a sweep over any other, in any place; the other's files are removed first or
        not."""
        source = self.rng.choice(self.places)
        old, new = self.rng.choice(SWEEPS), self.rng.choice(SWEEPS)
        if (source, old) == (place, new):
            return "nothing"
        if self.rng.random() < 0.5:
            self._clear(place, f"{new}/")
        if isinstance(source, _Folder) and isinstance(place, _Folder):
            if (source.folder / old).is_dir():  # with its times, if the writer keeps them
                copy = self.rng.choice((shutil.copy2, shutil.copyfile))
                shutil.copytree(
                    source.folder / old, place.folder / new, copy_function=copy, dirs_exist_ok=True
                )
            return f"{old} of {source.root} as {new}"
        for path in self._files(source):
            if path.startswith(f"{old}/"):
                place.write(f"{new}{path[len(old) :]}", source.read(path), self.rng)
        return f"{old} of {source.root} as {new}"

    def _rename_sweep(self, place: Place) -> str:
        old, new = self.rng.sample(SWEEPS, 2)
        if any(path.startswith(f"{new}/") for path in self._files(place)):
            return "nothing"
        if isinstance(place, _Folder):
            with suppress(FileNotFoundError):
                (place.folder / old).rename(place.folder / new)
            return f"{old} to {new}"
        for path in self._files(place):
            if path.startswith(f"{old}/"):
                place.write(f"{new}{path[len(old) :]}", place.read(path), self.rng)
                place.remove(path)
        return f"{old} to {new}"

    def _swap(self, place: Place) -> str:
        first, second = self.places[:2]
        if not (isinstance(first, _Folder) and isinstance(second, _Folder)):
            return f"nothing of {place.root}"
        between = first.folder.with_name("between")
        first.folder.rename(between)
        second.folder.rename(first.folder)
        between.rename(second.folder)
        return "roots"

    def _grow(self, place: Place) -> str:
        """Append lines to a file, or a part to data in parts."""
        files = self._files(place, ".jsonl", "stdout.log")
        parts = [path for path in self._files(place) if ".parts/" in path]
        if not files + parts:
            return "nothing"
        path = self.rng.choice(files + parts)
        if path in parts:
            folder = path.rpartition("/")[0]
            end = sum(len(place.read(part)) for part in parts if part.startswith(f"{folder}/"))
            if self.rng.random() < 0.3:  # write the whole file beside its parts
                mine = sorted(
                    (p for p in parts if p.startswith(f"{folder}/")),
                    key=lambda p: int(p[len(folder) + 1 :]),
                )
                whole = b"".join(place.read(part) for part in mine)
                place.write(folder.removesuffix(".parts"), whole, self.rng)
            else:
                place.write(f"{folder}/{end}", self._writer.rows(1), self.rng)
        elif "summaries" in path:
            place.write(path, place.read(path) + self._writer.summaries(0), self.rng)
        else:
            self._append(place, path, self._writer.rows(self.rng.randrange(1, 3)))
        return path

    def _append(self, place: Place, path: str, data: bytes) -> None:
        if isinstance(place, _Folder):
            with (place.folder / path).open("ab") as file:
                file.write(data)
        else:
            place.write(path, place.read(path) + data, self.rng)

    def _edit(self, place: Place) -> str:
        """Change one digit, keeping the length."""
        files = self._files(place)
        if not files:
            return "nothing"
        path = self.rng.choice(files)
        data = bytearray(place.read(path))
        digits = [at for at, byte in enumerate(data) if 0x31 <= byte <= 0x38]
        if digits and not path.endswith("sweep.json"):
            data[self.rng.choice(digits)] ^= 1
            if self.rng.random() < 0.3 and path.endswith(".jsonl"):
                data += self._writer.rows(1)
            place.write(path, bytes(data), self.rng)
        return path

    def _damage(self, place: Place) -> str:
        files = self._files(place)
        if not files:
            return "nothing"
        path = self.rng.choice(files)
        data = place.read(path)
        self._whole.setdefault((id(place), path), data)
        size = len(data)
        damaged = self.rng.choice(
            [b"", data[: size // 2], b"\0" * size, b"{}", b'{"schema": 1, "wall_s": "x"}', b"[1]"]
            if "/state/" in path
            else [
                b"",
                data[: size // 2],
                b"\0" * size,
                data[: size // 2] + b"\xff" + data[size // 2 :],
            ]
        )
        place.write(path, damaged, self.rng)
        return path

    def _mend(self, place: Place) -> str:
        """Restore damaged files."""
        mine = [path for owner, path in self._whole if owner == id(place)]
        if not mine:
            return "nothing"
        path = self.rng.choice(mine)
        place.write(path, self._whole.pop((id(place), path)), self.rng)
        return path

    def _remove_file(self, place: Place) -> str:
        files = self._files(place)
        if not files:
            return "nothing"
        path = self.rng.choice(files)
        place.remove(path)
        return path

    def _record(self, place: Place) -> str:
        """Record a further event or attempt, with its files."""
        sweep, run, attempt = (
            self.rng.choice(SWEEPS),
            self.rng.choice(RUNS),
            self.rng.randrange(1, 4),
        )
        for path, data in self._writer.attempt(sweep, run, attempt, self.rng.choice(_ENDS)).items():
            with suppress(NotFound):
                place.write(path, data, self.rng)
        return f"{sweep}/{run}.{attempt}"

    def _loose(self, place: Place) -> str:
        """Write a run that is in no sweep."""
        folder = self.rng.choice(("loose/x", "loose/y"))
        for path, data in self._writer.folder(folder, 0).items():
            place.write(path, data, self.rng)
        return folder


class _Writer:
    """Writes files as programs leave them, by paths relative to the root."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def _number(self) -> float:
        return self._rng.randrange(1000, 9999) / 1000

    def sweep(self, name: str) -> dict[str, bytes]:
        """Write a plan, and runs at random stages."""
        at = self._rng.choice(("last", "best"))
        runs = [
            {"id": run, "name": f"lr={n},seed=0", "cell": f"lr={n}", "seed": 0, "config": {"lr": n}}
            for n, run in enumerate(RUNS)
        ]
        plan = {"schema": 1, "name": name, "recipe": {"reference": "x"}, "axes": {"lr": [0, 1, 2]}}
        plan |= {"metric": {"name": "loss", "goal": "minimize", "at": at}}
        documents = {
            f"{name}/sweep.json": json.dumps(
                plan | {"launch": {"retries": 0, "backend": "local"}, "runs": runs}
            )
        }
        made = {path: text.encode() for path, text in documents.items()}
        for run in RUNS:
            last = self._rng.randrange(0, 3)
            for attempt in range(1, last + 1):
                end = self._rng.choice(("", *_ENDS) if attempt == last else _ENDS)
                made |= self.attempt(name, run, attempt, end)
        return made

    def attempt(self, sweep: str, run: str, attempt: int, end: str) -> dict[str, bytes]:
        """Write an attempt's events and folder."""
        body = {"schema": 1, "time": "2026-11-21T01:02:04Z"}
        claimed = body | {
            "started": f"2026-11-21T01:02:{self._rng.randrange(10, 60)}Z",
            "host": "h",
        }
        reason = None if end == "succeeded" else self._rng.choice(("oom", "net", "bug"))
        ended = {"reason": reason, "wall_s": self._number(), "code": 0 if reason is None else 1}
        bodies = {"intent": body, "submitted": body, "claimed": claimed}
        if end:
            bodies[end] = claimed | ended | {"ended": "2026-11-21T01:05:04Z", "detail": None}
        made = {
            f"{sweep}/state/{run}/{attempt}.{event}.json": json.dumps(content).encode()
            for event, content in bodies.items()
        }
        made[f"{sweep}/attempts/{run}.{attempt}/stdout.log"] = self.rows(2)
        return made | self.folder(f"{sweep}/runs/{run}.{attempt}", attempt)

    def folder(self, folder: str, attempt: int) -> dict[str, bytes]:
        """Write the log directory of a recipe."""
        made = {f"{folder}/config.json": json.dumps({"lr": self._number()}).encode()}
        metrics = self.rows(self._rng.choice((1, 3, 40)))
        if self._rng.random() < 0.2:
            half = len(metrics) // 2
            made[f"{folder}/metrics.jsonl.parts/0"] = metrics[:half]
            made[f"{folder}/metrics.jsonl.parts/{half}"] = metrics[half:]
        else:
            made[f"{folder}/metrics.jsonl"] = metrics
        if self._rng.random() < 0.5:
            record = {"name": "final", "batch": 3, "final": self._rng.random() < 0.5}
            made[f"{folder}/checkpoints.jsonl"] = json.dumps(record).encode() + b"\n"
        for iteration in range(self._rng.randrange(0, 3)):
            name = self._rng.choice(("train", "eval_test"))
            path = f"{folder}/iteration_{iteration:06}/{name}_rollout_summaries.jsonl"
            made[path] = self.summaries(iteration) + self.summaries(iteration)
        return made

    def rows(self, count: int) -> bytes:
        """Return lines of metrics, some of them awkward; the last one may be incomplete."""
        lines: list[str] = []
        first = self._rng.randrange(0, 5)
        for step in range(first, first + count):
            row: dict[str, object] = {"step": step, "loss": self._number(), "other": self._number()}
            match self._rng.randrange(0, 16):
                case 0:
                    row["loss"] = float("nan")
                case 1:
                    row[self._rng.choice(("late", "note"))] = self._rng.choice(("text", 1.5, None))
                case 2:
                    del row["step"]
                case 3:
                    row["big"] = 2**60 + step
                case _:
                    pass
            lines.append(json.dumps(row) if self._rng.random() < 0.97 else "no JSON")
        text = "".join(line + "\n" for line in lines)
        return (text[: -self._rng.randrange(1, 9)] if self._rng.random() < 0.1 else text).encode()

    def summaries(self, iteration: int) -> bytes:
        """Return a trajectory."""
        step = {"ob_len": 5, "ac_len": self._rng.randrange(10, 99), "reward": self._number()}
        step |= {"metrics": {"ok": self._number()}, "logs": {"response": "four"}}
        record = {"split": self._rng.choice(("train", "test")), "iteration": iteration}
        record |= {"group_idx": 0, "traj_idx": self._rng.randrange(0, 4), "steps": [step]}
        record |= {"total_reward": self._number(), "final_reward": 0.0, "final_ob_len": 0}
        extra = {self._rng.choice(("a", "b")): self._number()} if self._rng.random() < 0.5 else {}
        record |= {"tags": [self._rng.choice("xy")], "trajectory_metrics": extra}
        return json.dumps(record).encode() + (b"\n" if self._rng.random() < 0.95 else b"")
