"""Who is told of a sweep: what a launcher puts on record, and how it reaches people, once each."""

import http.server
import json
import socketserver
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sweeper.errors import EnvironmentFailure, GridError
from sweeper.grid import parse_grid
from sweeper.grid.notify import notify_of
from sweeper.launcher import launching
from sweeper.model.notify import Email, Message, Notify
from sweeper.model.states import Event
from sweeper.monitor.records import Alarm
from sweeper.notifying.delivery import Sender, deliver
from sweeper.scheduler.notifier import Notifier
from sweeper.storage import messages
from sweeper.storage.documents import encode, read_json
from sweeper.storage.files import LocalStore
from sweeper.storage.sweeps import read_plan

SECRET = "s3cret-in-the-address"


class Receiver:
    """A server that takes messages, and first gives the answers in `faults`."""

    def __init__(self) -> None:
        self.faults: list[int] = []
        self.taken: list[dict[str, Any]] = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                code = receiver.faults.pop(0) if receiver.faults else 200
                if code == 200:
                    receiver.taken.append(json.loads(body))
                self.send_response(code)
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/{SECRET}"


class Mailbox(socketserver.StreamRequestHandler):
    """As much of SMTP as a client needs who sends one mail."""

    def handle(self) -> None:
        def say(line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

        say("220 here")
        lines: list[str] = []
        while word := self.rfile.readline().decode().strip():
            if word.upper() == "DATA":
                say("354 go on")
                while (line := self.rfile.readline().decode().rstrip("\r\n")) != ".":
                    lines.append(line)
                self.server.taken.append(lines)  # type: ignore[attr-defined]
            if word.upper() == "QUIT":
                say("221 bye")
                return
            say("250 ok")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture
def mailbox() -> Iterator[Any]:
    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Mailbox) as server:
        server.taken = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def store(tmp_path: Path, written: ModuleType) -> LocalStore:
    made = written.Written(tmp_path, "s", {"lr": [1, 2]})
    for rate in (1, 2):
        made.run({"lr": rate}, 0, [{"step": 1, "test/nll": float(rate)}])
    made.save()
    return LocalStore(str(tmp_path))


def sender(store: LocalStore, notify: Notify, url: str = "", **more: Any) -> Sender:
    environment = {"HOOK": url, "SLACK": url, "PATH": "/usr/bin:/bin"}
    return Sender(store, "s", notify, environment, sleep=more.pop("sleep", lambda _: None), **more)


def told(store: LocalStore, key: str, kind: str = "alarm", text: str = "a <b> & c") -> None:
    messages.put(store, "s", Message(key, kind, text, "2026-11-22T00:00:00Z"))


def test_each_message_arrives_once_however_often_it_is_sent(
    store: LocalStore, receiver: Receiver
) -> None:
    told(store, "one")
    told(store, "end-1", "end", "has ended: 2 succeeded")
    receiver.faults = [500, 302, 429]
    waits: list[float] = []
    both = Notify(webhook="$HOOK", slack="$SLACK")
    way = sender(store, both, receiver.url, sleep=waits.append, verdict=lambda: "lr=1 won")
    assert all(one.delivered for one in deliver(way))
    assert waits and waits == sorted(waits)
    assert all(one.delivered for one in deliver(way))
    hooks = [one for one in receiver.taken if "schema" in one]
    slack = [one for one in receiver.taken if "schema" not in one]
    assert sorted(one["text"] for one in hooks) == [
        "s has ended: 2 succeeded\nlr=1 won",
        "s: a <b> & c",
    ]
    assert {one["text"] for one in slack} >= {"s: a &lt;b&gt; &amp; c"} and len(slack) == 2
    assert {one["verdict"] for one in hooks} == {None, "lr=1 won"}
    assert len({one["id"] for one in hooks}) == 2
    kept = [path.read_text() for path in Path(store.root).rglob("*.json")]
    assert not any(SECRET in text for text in kept)


def test_two_who_send_at_once_send_it_once(store: LocalStore, receiver: Receiver) -> None:
    for number in range(5):
        told(store, f"m{number}")
    way = sender(store, Notify(webhook="$HOOK"), receiver.url)
    threads = [threading.Thread(target=deliver, args=(way,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(receiver.taken) == 5


def test_one_that_was_cut_off_is_not_sent_again(store: LocalStore, receiver: Receiver) -> None:
    """It may have arrived."""
    told(store, "one")
    assert messages.begin(store, "s", "one", "webhook", 1)
    (found,) = deliver(sender(store, Notify(webhook="$HOOK"), receiver.url))
    assert found.delivered is None and not receiver.taken


def test_a_receiver_out_of_reach_is_tried_for_a_while_and_named_without_its_secret(
    store: LocalStore,
) -> None:
    told(store, "one")
    waits: list[float] = []
    way = sender(store, Notify(webhook="$HOOK"), f"http://127.0.0.1:9/{SECRET}", sleep=waits.append)
    (found,) = deliver(way, most=4)
    assert (found.delivered, found.tries, waits) == (False, 4, [2.0, 4.0, 8.0])
    assert "refused" in (found.error or "") and SECRET not in (found.error or "")
    (found,) = deliver(way._replace(environment={}), most=1)
    assert found.error == "the variable HOOK is not set"


def test_mail_and_commands(store: LocalStore, mailbox: Any, tmp_path: Path) -> None:
    told(store, "end-1", "end", "has ended: 2 succeeded")
    told(store, "budget-1", "budget", "spent")
    server = f"127.0.0.1:{mailbox.server_address[1]}"
    email = Email(("me@example.org",), server, "sweeper@example.org", tls="none")
    file = tmp_path / "said"
    script = 'echo "$0 $SWEEPER_KIND $1" >> ' + str(file)
    notify = Notify(("end",), ("sh", "-c", script, "{sweep}", "{message}"), email=email)
    assert all(one.delivered for one in deliver(sender(store, notify, verdict=lambda: "lr=1 won")))
    (mail,) = mailbox.taken
    assert "Subject: s has ended: 2 succeeded" in mail and "lr=1 won" in mail
    assert file.read_text() == "s end s has ended: 2 succeeded\nlr=1 won\n"
    fails = Notify(command=("sh", "-c", "echo no $TOKEN_KEY; exit 3"))
    way = sender(store, fails)._replace(environment={"TOKEN_KEY": SECRET, "PATH": "/usr/bin:/bin"})
    errors = {one.error for one in deliver(way, most=1) if not one.delivered}
    assert errors == {"sh ended with 3: no ***"}


# What a launcher puts on record


class Told:
    """A launcher's notifier on a scene, whose program is not started but counted."""

    def __init__(self, scene: Any) -> None:
        self.scene, self.started = scene, 0
        self.environments: list[Mapping[str, str]] = []

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> Any:
        assert command[-5:] == ["notify", "s", "--root", self.scene.store.root, "--quiet"]
        self.started += 1
        return lambda: True

    def put(self, scheduler: Any) -> None:
        context = scheduler._context
        made = Notifier(context, Notify(webhook="$HOOK"), None, self.start)
        scheduler._notifier = made
        scheduler._alarm_monitor.raised = made.raised

    @property
    def keys(self) -> list[str]:
        return [key.partition("-")[0] for key in messages.keys(self.scene.store, "s")]


def alarm(number: int) -> Alarm:
    no = (None, None, None, None)
    return Alarm(f"{number:012x}", f"x={number}", 1, "nan", "", *no, "the loss is NaN", "")


def test_an_end_is_told_once_and_another_after_a_retry(make_scene: Any) -> None:
    scene = make_scene(1)
    made = Told(scene)
    made.put(scene.scheduler)
    scene.step()
    scene.worker(scene.ids[0], 1, Event.CLAIMED)
    scene.worker(scene.ids[0], 1, Event.FAILED)
    scene.scheduler.run()
    assert (made.keys, made.started) == (["end"], 1)
    again = scene.new_scheduler()  # as after the launcher was killed
    made.put(again)
    again.run()
    assert made.keys == ["end"]
    scene.worker(scene.ids[0], 1, Event.RETRY)
    scene.worker(scene.ids[0], 2, Event.CLAIMED)
    scene.worker(scene.ids[0], 2, Event.SUCCEEDED)
    last = scene.new_scheduler()
    made.put(last)
    last.run()
    assert made.keys == ["end", "end"]


def test_alarms_are_told_one_by_one_until_there_are_many(make_scene: Any) -> None:
    scene = make_scene(1)
    made = Told(scene)
    made.put(scene.scheduler)
    for number in range(30):
        for _ in range(2):  # as by a launcher before, too
            scene.scheduler._notifier.raised(alarm(number))
    scene.scheduler._notifier.look("the budget is spent (2 of 1 tokens)")
    scene.scheduler._notifier.look("the budget is spent (3 of 1 tokens)")
    found = messages.keys(scene.store, "s")
    assert len(found) == 22 and "alarm-more" in found and made.started == 1
    assert made.keys.count("budget") == 1


def test_a_store_that_does_not_answer_stops_no_launcher(
    make_scene: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = make_scene(1)
    made = Told(scene)
    made.put(scene.scheduler)
    scene.scheduler._notifier.raised(alarm(0))
    create = LocalStore.create
    monkeypatch.setattr(LocalStore, "create", _refuse)
    scene.scheduler._notifier.look(None)
    monkeypatch.setattr(LocalStore, "create", create)
    scene.scheduler._notifier.look(None)
    assert made.keys == ["alarm"]


def _refuse(*_: Any) -> None:
    from sweeper.errors import StoreError

    raise StoreError("no")


# What is said where


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{}", "notify needs one of command, webhook, slack, email"),
        ("{slack: https://hooks.slack.com/services/x}", "write the variable"),
        ("{webhook: 'https://me:pw@host/'}", "without a secret"),
        ("{command: ['say {massage}']}", "did you mean 'message'?"),
        ("{on: [ends], slack: $S}", "'ends' is none (did you mean 'end'?)"),
        ("{email: {to: [me]}}", "'me' is no address"),
        ("{email: {to: [a@b]}}", "needs a server"),
        ("{email: {to: [a@b], server: h, sender: a@b, password: hunter2}}", "the variable that"),
    ],
)
def test_a_section_that_is_wrong(section: str, said: str) -> None:
    with pytest.raises(GridError, match="notify") as caught:
        parse_grid(f"recipe: sft\nnotify: {section}\n", "g.yaml")
    assert said in str(caught.value) and "hunter2" not in str(caught.value)


def test_a_grids_section_goes_before_the_configuration(
    make_scene: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    scene = make_scene(1)
    plan = read_plan(scene.store, "s")
    assert notify_of(plan) is None
    (tmp_path / "sweeper").mkdir()
    (tmp_path / "sweeper" / "config.toml").write_text('[notify]\nslack = "$SLACK_HOOK"\n')
    assert notify_of(plan) == Notify(slack="$SLACK_HOOK")
    with pytest.raises(EnvironmentFailure, match="the variable SLACK_HOOK is not set"):
        launching._check_account(plan)
    asked = parse_grid("recipe: sft\nnotify: {on: [], slack: $S}\n", "g.yaml").notify
    assert notify_of(plan._replace(notify=asked)) is None
    given = Notify(("end",), ("say", "{message}"), email=Email(("a@b",), "h", "a@b"))
    document = read_json(scene.store, "s/sweep.json") | {"notify": given.document()}
    scene.store.replace("s/sweep.json", encode(document))
    assert notify_of(read_plan(scene.store, "s")) == given
