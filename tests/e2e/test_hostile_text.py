"""No text of a foreign sweep folder reaches the terminal as a control sequence or a new line."""

import contextlib
import json
import os
import pty
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from libtmux import Server
from support import written

from sweeper.cli import main
from sweeper.common.sanitize import sanitize
from sweeper.sweep.folder import SweepFolder

# Title, clipboard (both ends of an OSC), screen; C1 controls; bidirectional and invisible
# characters; characters that overwrite a line or start one.
ORDERS = (
    "\x1b]0;T\x07\x1b]52;c;QQ==\x1b\\\x1b[2J\x1b[31m\x9b31m\x9d0;T\x9c\x90q\u202e\u2066\u200f\u200b"
    "\x7f\x08\x00\ud800\ufeff"
)
HOSTILE = f"a{ORDERS}\rFORGED\nFORGED\u2028FORGED\x85FORGED\x0bFORGED"
FORBIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
OURS = re.compile(r"\x1b\[[0-9;]*[mHKJ]|\x1b\[\?25[hl]|\r")
"""Colours, and sequences that redraw a screen."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile") / "root"
    for name in ("evil", "b\x1b[2J\u202e"):
        sweep = written.Written(
            root,
            name,
            {f"k{HOSTILE}": [HOSTILE, "2"]},
            {"name": f"m{HOSTILE}", "goal": "minimize", "at": "last"},
            created=HOSTILE,
            grid=HOSTILE,
            recipe={"reference": HOSTILE, "kind": "command", "command": [HOSTILE], "cwd": HOSTILE},
            provenance={HOSTILE: HOSTILE, "host": HOSTILE, "command": [HOSTILE]},
            wandb={"project": HOSTILE, "entity": HOSTILE, "mode": "online", "url": HOSTILE},
            launch={"backend": "local", "max_parallel": 2, "retries": 0, "grace_s": 1.0},
        )
        for value in (HOSTILE, "2"):
            for seed, state in ((0, "failed"), (1, "succeeded")):
                _run(sweep, f"k{HOSTILE}", value, seed, state)
        sweep.save()
        ids = [run["id"] for run in sweep.document["runs"]]
        _launcher_told(sweep.folder, ids)
    bare = root / "others" / "x\x1b[2J"
    bare.mkdir(parents=True)
    (bare / "metrics.jsonl").write_text(json.dumps({"step": 1, HOSTILE: HOSTILE}))
    return root


def _run(sweep: Any, key: str, value: str, seed: int, state: str) -> None:
    rows = [{"step": n, f"m{HOSTILE}": n + seed, f"t{HOSTILE}": HOSTILE} for n in range(4)]
    observed = {"reason": HOSTILE, "detail": HOSTILE, "host": HOSTILE}
    marks = written.checkpoint(HOSTILE, name=f"final{HOSTILE}")
    log = f"{HOSTILE}\nlast {ORDERS}\n".replace("\ud800", "")
    run = sweep.run(
        {key: value, "of": sweep.name},
        seed,
        rows,
        state,
        checkpoints=marks,
        log=log,
        config={HOSTILE: HOSTILE},
        **observed,
    )
    folder = sweep.folder / "runs" / f"{run}.1"
    (folder / "f\x1b[2J\n\u202e").write_text("x")
    inner = folder / "iteration_000000"
    inner.mkdir()
    steps = [{"ac_len": 4, "logs": {"response": HOSTILE, HOSTILE: HOSTILE}}]
    record = {"group_idx": 0, "traj_idx": 0, "total_reward": 1.0, "iteration": 0, "steps": steps}
    name = "train\x1b[2J_rollout_summaries.jsonl"
    (inner / name).write_text(written.dump([record | {"tags": [HOSTILE]}]))
    (inner / "train_rollout_summaries.jsonl").write_text(written.dump([record, "bad"]))


def _launcher_told(folder: Path, ids: list[str]) -> None:
    document = {
        "held": HOSTILE,
        "unreachable": HOSTILE,
        "limit": 1,
        "observed": dict.fromkeys(ids, HOSTILE),
    }
    (folder / "launcher").mkdir()
    (folder / "launcher" / "observations.json").write_text(json.dumps({"schema": 1} | document))
    (folder / "alarms").mkdir()
    for rule in ("nan", "kl"):
        alarm = {"schema": 1, "name": HOSTILE, "time": HOSTILE, "key": HOSTILE, "message": HOSTILE}
        alarm |= {"advice": HOSTILE, "actions": [HOSTILE], "step": 1, "rule": rule}
        (folder / "alarms" / f"{ids[0]}.1.{rule}.json").write_text(json.dumps(alarm))
        done = {"schema": 1, "outcome": HOSTILE}
        (folder / "alarms" / f"{ids[0]}.1.{rule}.action.json").write_text(json.dumps(done))
    (folder / "notes").mkdir()
    for number, run in enumerate((None, ids[0])):
        mark = {"kind": "note", "run": run, "text": HOSTILE, "by": HOSTILE, "time": HOSTILE}
        name = f"{number:019}-00000000.note.json"
        (folder / "notes" / name).write_text(json.dumps(mark))


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """Return a valid grid in which every free text is hostile."""
    path = tmp_path / "grid.yaml"
    text = json.dumps(re.sub("[\ud800\x00]", "", HOSTILE))
    path.write_text(
        f"name: g\ncommand: ['true', {text}, '{{x}}']\nservice: none\ngrid: {{x: [{text}, b]}}\n"
        f"metric: {{name: {text}, goal: minimize}}\n"
        f"launch: {{backend: local, env: {{E: {text}}}}}\n"
    )
    return path


VERBS = [
    "status",
    "status evil",
    "status evil --json",
    "ls",
    "ls evil",
    "ls --json",
    "ls nothing",
    "show ID",
    "show others",
    "show ID --json",
    "note evil",
    "note ID",
    "note ID --json",
    "compare evil",
    "compare evil --all",
    "logs evil",
    "logs evil --json",
    "logs",
    "alarms evil",
    "alarms evil --json",
    "rollouts ID",
    "rollouts ID --full",
    "rollouts ID --json",
    "sql SELECT",
    "sql BAD",
    "store gc",
    "store gc --attempts",
    "cancel evil",
    "retry evil NAME",
    "doctor",
    "export --format csv --table runs --out OUT",
    "analyze evil --out OUT",
    "compare evil/A evil/B",
    "plan GRID",
    "plan GRID --full",
    "plan GRID --json",
    "plan BADGRID",
    "launch BADGRID",
    "attach evil",
    "engine status",
    "watch evil",
    "status HOSTILE",
    "show HOSTILE",
    "ls --where HOSTILE",
    "ls --state HOSTILE",
]


@pytest.mark.parametrize("line", VERBS)
def test_no_text_of_a_folder_reaches_the_terminal_as_an_order(
    root: Path,
    grid: Path,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SWEEPER_ROOT", str(root))
    plan = json.loads((root / "evil" / "sweep.json").read_text())
    bad = tmp_path / "bad\x1b[2J.yaml"
    bad.write_text(grid.read_text() + f"{json.dumps(HOSTILE)}: 1\n")
    words = {
        "ID": plan["runs"][0]["id"],
        "NAME": plan["runs"][1]["name"],
        "A": plan["runs"][0]["cell"],
        "B": plan["runs"][2]["cell"],
        "SELECT": "select * from runs join metrics using (run)",
        "BAD": "".join(("select '", HOSTILE.replace("\ud800", ""), "' from x")),
        "OUT": str(tmp_path / "out\x1b[2J"),
        "GRID": str(grid),
        "BADGRID": str(bad),
        "HOSTILE": HOSTILE.replace("\ud800", ""),
    }
    arguments = [re.sub(r"\b[A-Z]+\b", lambda w: words[w[0]], word) for word in line.split()]
    code = main(arguments)
    out, err = capfdbinary.readouterr()
    assert code in (0, 2, 3, 4, 5, 6), err
    _judge(out + err, line)
    assert "GRID" not in line or code == (2 if "BAD" in line else 0), err
    assert code in (0, 3, 4) or "--json" not in line, err
    if "--json" in line:
        json.loads(out.splitlines()[0] if line.startswith("logs") else out)
    elif line.split(maxsplit=1)[0] in ("ls", "show", "status", "logs", "rollouts") and not code:
        assert b"FORGED" in out or b"\\u202e" in out  # the text was printed as text


def _judge(written: bytes, line: str) -> None:
    text = written.decode("utf-8")
    assert FORBIDDEN.findall(text) == []
    forged = [line for line in text.splitlines() if line.startswith("FORGED")]
    assert forged == [] or line == "logs ID"


def test_colours_and_cursors_on_a_terminal_are_ours(root: Path, tmp_path: Path) -> None:
    """On a terminal, other libraries draw the tables, and lines have colours."""
    environment = {**os.environ, "SWEEPER_HOME": str(tmp_path / "home"), "SWEEPER_ROOT": str(root)}
    environment |= {"TERM": "xterm-256color", "COLUMNS": "300"}
    environment.pop("NO_COLOR", None)
    for line in ("status evil --follow", "ls evil", "logs evil", "alarms evil", "show nothing"):
        shown = _on_terminal([sys.executable, "-m", "sweeper", *line.split()], environment)
        _judge(OURS.sub("", shown.decode()).encode(), line)
        assert "SWEEPER_DEBUG" not in shown.decode()


def _on_terminal(command: list[str], environment: dict[str, str]) -> bytes:
    process, terminal = pty.fork()
    if process == 0:
        os.execve(command[0], command, environment)
    output = b""
    with contextlib.suppress(OSError):  # Linux raises it when the other end is closed
        while data := os.read(terminal, 1 << 16):
            output += data
    os.close(terminal)
    os.waitpid(process, 0)
    return output


def test_the_screen_of_watch_has_no_orders(root: Path) -> None:
    """All text that Textual gets is harmless."""
    import asyncio

    from sweeper.store.local import LocalStore
    from sweeper.tui.app import WatchApp
    from sweeper.tui.poller import Poller
    from sweeper.tui.text import as_strip, as_text

    poller = Poller(SweepFolder(LocalStore(str(root)), "evil"))
    app = WatchApp(poller, poller.check(), every=0.05)

    async def shown() -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            for keys in (
                [],
                ["c"],
                ["n", "enter"],
                ["enter"],
                ["2"],
                ["3"],
                ["4"],
                ["question_mark"],
            ):
                await pilot.press(*keys)
                await pilot.pause(0.2)
                for strip in app.screen._compositor.render_strips():
                    for segment in strip:
                        assert segment.control is None
                        assert not FORBIDDEN.search(segment.text) and "\n" not in segment.text

    asyncio.run(shown())
    line = [(HOSTILE, "bold")]
    assert not FORBIDDEN.search(as_strip(line, 80).text) and "\n" not in as_text([line]).plain


def test_windows_are_called_by_harmless_names(tmux_socket: str, tmp_path: Path) -> None:
    """tmux expands formats in names and titles, and a format may run a shell command."""
    from sweeper.backends.base import JobSpec
    from sweeper.backends.tmux.backend import TmuxBackend
    from sweeper.backends.tmux.server import TmuxServer

    canary = tmp_path / "canary"
    name = re.sub("[\ud800\x00]", "", f"{HOSTILE}#(touch {canary})")
    backend = TmuxBackend(TmuxServer(), name, str(tmp_path))
    for window in (None, name):
        token = f"{'0' * 12}-a{1 if window else 2}"
        backend.submit([JobSpec(token, name, ["sleep", "60", token], "/", {}, window)])
    backend.show(name, {token: name})
    server = Server(socket_name=tmux_socket)
    form = "#{session_name} #{window_name} #{@sweeper_title} #{@sweeper_status} #{@sweeper_state}"
    shown = server.cmd("list-windows", "-a", "-F", form).stdout
    assert len(shown) == 3
    for line in shown:
        assert not FORBIDDEN.search(line) and not line.startswith("FORGED")
    assert sum("#(touch" in line for line in shown) == 3
    assert not canary.exists()


def test_a_shell_is_offered_no_orders(root: Path) -> None:
    from argparse import Namespace

    from sweeper.commands.completion import Offers

    for dest in ("sweep", "run", "runs"):
        given: Any = {"prefix": "evil/" if dest == "run" else "", "action": Namespace(dest=dest)}
        given |= {"parser": None, "parsed_args": Namespace(root=str(root), sweep="evil")}
        assert all(text == sanitize(text) for text in Offers()(**given))
