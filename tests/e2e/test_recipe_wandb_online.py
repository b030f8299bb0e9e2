"""What reaches W&B's service, for which the tests have a small stand-in."""

import gzip
import json
import shutil
import signal
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sweeper.sweep.plan import Run, read
from sweeper.sweep.tracking import run_id, variables

pytestmark = pytest.mark.e2e

SETTINGS = {"test_size": 4, "batch_size": 4, "eval_every": 0, "save_every": 4}
PROJECT = {"id": "p", "name": "demo", "entity": {"id": "e", "name": "us"}}


class Service(ThreadingHTTPServer):
    """The part of W&B's service that a run needs. `lines` has each run's history as sent."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.lines: dict[str, list[str]] = {}
        self.exit_codes: dict[str, list[int]] = {}
        self.configs: dict[str, dict] = {}
        self.projects: dict[str, tuple[str, str]] = {}

    def history(self, run):
        """Return metrics by step without W&B's names. Raise if a step came twice."""
        items = [json.loads(line) for line in self.lines[run]]
        assert len({item["_step"] for item in items}) == len(items)
        return {
            item["_step"]: {k: v for k, v in item.items() if not k.startswith("_")}
            for item in items
        }

    def bucket(self, run):
        return {
            "id": run,
            "name": run,
            "displayName": run,
            "config": "{}",
            "project": PROJECT,
            "historyLineCount": len(self.lines.get(run, [])),
        }

    def status(self, run):
        """Answer the first request of a run that may resume."""
        if run not in self.lines:
            return None
        return self.bucket(run) | {
            "summaryMetrics": "{}",
            "logLineCount": 0,
            "eventsLineCount": 0,
            "historyTail": json.dumps(self.lines[run][-1:]),
            "eventsTail": "[]",
            "tags": [],
            "notes": None,
            "wandbConfig": '{"t": 1}',
        }

    def query(self, text, values):
        if "RunResumeStatus" in text:
            return {"model": PROJECT | {"bucket": self.status(values["name"])}}
        if "UpsertBucket" in text:
            if values.get("config"):
                self.configs.setdefault(values["name"], {}).update(json.loads(values["config"]))
            if values.get("project"):
                # Keep the first request: later ones repeat our answer.
                project_key = (values.get("entity"), values["project"])
                self.projects.setdefault(values["name"], project_key)
            return {"upsertBucket": {"bucket": self.bucket(values["name"]), "inserted": True}}
        if "CreateRunFiles" in text:
            files = [{"name": name, "uploadUrl": self.url} for name in values["files"]]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        if "Viewer" in text:
            return {"viewer": {"id": "u", "entity": "us", "flags": "{}", "teams": {"edges": []}}}
        return {}

    def stream(self, run, sent):
        """Record lines by their number, so that a line sent twice counts once."""
        if chunk := (sent.get("files") or {}).get("wandb-history.jsonl"):
            self.lines.setdefault(run, [])[chunk["offset"] :] = chunk["content"]
        if sent.get("complete"):
            self.exit_codes.setdefault(run, []).append(sent["exitcode"])
        return {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def handle(self):
        with suppress(ConnectionError):  # W&B is killed with its run and does not close
            super().handle()

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        response = {}
        if self.path.endswith("/file_stream"):
            response = self.server.stream(self.path.split("/")[-2], json.loads(body))
        elif self.path.endswith("/graphql"):
            request = json.loads(body)
            response = {"data": self.server.query(request["query"], request.get("variables") or {})}
        text = json.dumps(response).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def __getattr__(self, name):
        if name in ("do_GET", "do_POST", "do_PUT"):
            return self.answer
        raise AttributeError(name)


@pytest.fixture
def service():
    with Service() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def env(service):
    return {"WANDB_BASE_URL": service.url, "WANDB_API_KEY": "k" * 40, "WANDB_PROJECT": "demo"}


def lines(recipes, log_path):
    rows = recipes.read(log_path / "metrics.jsonl")
    return {line.pop("step"): line for line in rows}


def recorded(recipes, log_path):
    return recipes.read(log_path / "checkpoints.jsonl")[-1]["wandb_run_id"]


def test_the_service_gets_what_metrics_jsonl_gets(recipes, service, env, tmp_path):
    done = recipes.run("sft", tmp_path, env=env, max_steps=6, **SETTINGS)
    assert done.returncode == 0
    assert "W&B: " not in done.stderr
    run = recorded(recipes, tmp_path)
    assert service.history(run) == lines(recipes, tmp_path)
    assert service.exit_codes == {run: [0]}


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_stopped_run_leaves_no_gap_there(recipes, service, env, tmp_path, signum, code):
    settings = SETTINGS | {"max_steps": 30}
    assert recipes.stopped_after("sft", tmp_path, 9, signum, env=env, **settings)[0] == code
    run = recorded(recipes, tmp_path)
    assert recipes.run("sft", tmp_path, env=env, **settings).returncode == 0
    assert recorded(recipes, tmp_path) == run
    history, whole = service.history(run), lines(recipes, tmp_path)
    assert list(history) == list(whole)
    for step, metrics in whole.items():  # a repeated step took another time
        assert history[step] | {"time/total": 0} == metrics | {"time/total": 0}
    assert service.exit_codes[run][-1] == 0


def test_a_project_given_late_gets_the_steps_before(recipes, service, env, tmp_path):
    settings = SETTINGS | {"max_steps": 30}
    assert recipes.stopped_after("sft", tmp_path, 9, signal.SIGTERM, **settings)[0] == 143
    assert recipes.run("sft", tmp_path, env=env, **settings).returncode == 0
    assert service.history(recorded(recipes, tmp_path)) == lines(recipes, tmp_path)


def test_attempts_of_a_sweep_s_run_are_one_run_there(recipes, service, env, tmp_path):
    """The second attempt, in another folder, continues the W&B run from its checkpoint."""
    document = {"name": "s", "created": "now", "launch": {}, "recipe": {}, "runs": []}
    plan = read({**document, "wandb": {"project": "from the grid", "entity": "us"}}, "sweep.json")
    run = Run("0123456789ab", "lr=1", "lr=1", 0, {"max_steps": 30})
    environment = variables(plan, run)
    settings = SETTINGS | {"max_steps": 30}
    first, second = tmp_path / "1", tmp_path / "2"
    there = env | environment | {"WANDB_DIR": str(first)}
    first.mkdir()
    assert recipes.stopped_after("sft", first, 9, signal.SIGTERM, env=there, **settings)[0] == 143
    second.mkdir()
    for name in ("metrics.jsonl", "checkpoints.jsonl", "config.json"):
        shutil.copy(first / name, second)
    done = recipes.run("sft", second, env=there | {"WANDB_DIR": str(second)}, **settings)
    assert done.returncode == 0
    assert "W&B: " not in done.stderr
    wandb_id = run_id(plan, run.id)
    assert list(service.lines) == [wandb_id]
    assert list(service.history(wandb_id)) == list(lines(recipes, second))
    assert service.configs[wandb_id]["max_steps"]["value"] == 30
    assert service.configs[wandb_id]["sweeper"]["value"]["cell"] == "lr=1"
    assert service.projects[wandb_id] == ("us", "from the grid")
