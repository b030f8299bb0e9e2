"""`sweeper doctor notify`: sends a sweep's undelivered notifications, or a test message."""

import os
from argparse import ArgumentParser, Namespace

from sweeper.alarms.delivery import MOST_TRIES, Delivery, Letter, Sender, Undelivered, deliver, send
from sweeper.commands import arguments as shared
from sweeper.commands.output import agreeing
from sweeper.errors import NotFound
from sweeper.grid.notify import notify_of
from sweeper.results.registry import Registry
from sweeper.store.documents import timestamp
from sweeper.store.opening import default_root
from sweeper.sweep.notify import Notify
from sweeper.sweep.trust import require
from sweeper.terminal import print_json, print_table, say, warn


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper doctor notify`."""
    shared.required_sweep(verb)
    send = shared.group(verb, "how to send")
    shared.flag(send, "--test", "send a test message")
    shared.flag(send, "--quiet", "print nothing")
    shared.trust(verb, "how to send")
    shared.root(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Send the undelivered notifications, and print the state of every delivery. With `--test`,
    send a test message instead."""
    root = arguments.root or default_root()
    sweep = Registry(root).sweep(arguments.sweep)
    notify = notify_of(sweep.plan)
    if notify is None:
        raise NotFound(
            f"{sweep.name}: no receivers: set `notify:` in its grid or in your configuration"
        )
    # The settings name commands, servers and variables, and another user may have written them.
    require(sweep.plan.recorded, sweep.folder.address, agreeing(arguments))
    cwd = sweep.plan.recipe.cwd
    cwd = cwd if os.path.isdir(cwd or "") else None
    if arguments.test:
        return _test(sweep.name, sweep.root, notify, cwd)

    def verdict() -> str | None:
        from sweeper.analysis.page.verdict_line import verdict_line

        try:
            return verdict_line(Registry(root, snapshot=True), sweep.name)
        except Exception:  # noqa: BLE001 - the message is sent without the verdict
            return None

    sender = Sender(sweep.folder, notify, dict(os.environ), verdict, cwd)
    deliveries = deliver(sender, most=MOST_TRIES if arguments.quiet else 1)
    if arguments.quiet:
        return 0
    if arguments.json:
        documents = [delivery._asdict() for delivery in deliveries]
        return print_json({"schema": 1, "sweep": sweep.name, "messages": documents})
    if not deliveries:
        say(f"{sweep.name}: no notifications yet")
        return 0
    rows = [
        (delivery.kind, delivery.key, delivery.receiver, _word(delivery), delivery.error or "-")
        for delivery in deliveries
    ]
    print_table(("kind", "message", "by", "arrived", "error"), rows)
    return 0


def _word(delivery: Delivery) -> str:
    if delivery.delivered is None:
        if delivery.sending:
            return "being sent"
        return "unknown: interrupted" if delivery.tries else "not sent"
    return "yes" if delivery.delivered else f"failed {delivery.tries} times"


def _test(sweep: str, root: str, notify: Notify, cwd: str | None) -> int:
    text = f"{sweep}: this is a test of sweeper's messages"
    letter = Letter(f"test-{os.urandom(8).hex()}", sweep, root, "test", timestamp(), (text,))
    failed = False
    for way in notify.receivers:
        try:
            send(way, letter, notify, dict(os.environ), cwd)
            say(f"{way}: sent")
        except Undelivered as error:
            failed = True
            warn(f"{way}: {error}")
    return 6 if failed else 0
