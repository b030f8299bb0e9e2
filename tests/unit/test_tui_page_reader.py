"""A run's page of `sweeper watch`: what is read for it, and how often."""

from typing import Any

from sweeper.errors import StoreError
from sweeper.sweep.states import Event
from sweeper.tui.model import RunView, best_run
from sweeper.tui.panels import PageData
from sweeper.tui.run_page import PageReader

Watched = Any


def test_a_page_reads_only_what_was_added(watched: Watched) -> None:
    first = watched.scene.ids[0]
    watched.scene.worker(first, 1, Event.CLAIMED)
    watched.rows(first, 0, 1, note="text")
    watched.scene.log(first, "one\ntwo\n")
    watched.run()
    reader = PageReader(watched.poller.run(first), "loss", watched.poller.run)
    page = reader.read()
    assert isinstance(page, PageData) and list(page.curves) == ["loss"]
    assert page.log == ("one", "two") and reader.read() is page
    watched.rows(first, 2)
    watched.scene.log(first, "three\n")
    page = reader.read()
    assert page.curves["loss"] == ((0.0, 1.0), (1.0, 0.5), (2.0, 1 / 3))
    assert page.log[-1] == "three"


def test_a_page_has_the_curves_of_the_best_other_run(watched: Watched) -> None:
    first, second = watched.scene.ids[:2]
    for run, steps in ((first, (0, 1)), (second, (0, 1, 2))):
        watched.scene.worker(run, 1, Event.CLAIMED)
        watched.rows(run, *steps)
    watched.run()
    reader = PageReader(watched.poller.run(first), "loss", watched.poller.run)
    best = best_run(watched.poller.check().runs, first)
    page = reader.read(best)
    assert (page.best, page.best_curves["loss"][-1]) == (second, (2.0, 1 / 3))
    assert reader.read(best) is page
    watched.rows(second, 3)
    page = reader.read(best)
    assert page.best_curves["loss"][-1] == (3.0, 0.25) and len(page.curves["loss"]) == 2
    assert not reader.read(None).best_curves


def test_a_page_is_shown_without_unreadable_parts(watched: Watched) -> None:
    first, second = watched.scene.ids[:2]
    for run, steps in ((first, (0, 1)), (second, (0, 1, 2))):
        watched.scene.worker(run, 1, Event.CLAIMED)
        watched.rows(run, *steps)
    watched.scene.log(first, "hello\n")
    watched.run()
    broken = [True]

    def handle(run: str) -> Any:
        if broken:
            raise StoreError("denied")
        return watched.poller.run(run)

    reader = PageReader(watched.poller.run(first), "loss", handle)
    best = best_run(watched.poller.check().runs, first)
    page = reader.read(best)
    assert (page.problem, page.log, page.best_curves) == ("denied", ("hello",), {})
    assert len(page.curves["loss"]) == 2
    broken.clear()
    page = reader.read(best)
    assert not page.problem and len(page.best_curves["loss"]) == 3


def test_a_page_lists_a_remote_store_once_per_look(scene: Any, make_watched: Any) -> None:
    (first, second, third), calls = scene.ids, list[str]()
    watched = make_watched(scene, scene.at(calls.append, remote=True))
    for run, steps in ((first, (0, 1)), (second, (0, 1, 2)), (third, (0, 1, 2, 3))):
        watched.scene.worker(run, 1, Event.CLAIMED)
        watched.rows(run, *steps)
    watched.run()
    by_id = {run.id: run for run in watched.poller.check().runs}
    listing = f"store.list {scene.folder.runs}"
    reader = PageReader(watched.poller.run(first), "loss", watched.poller.run)

    def read(best: RunView) -> tuple[PageData, int]:
        calls.clear()
        return reader.read(best), calls.count(listing)

    for run in (second, third, second):
        read(by_id[run])
    watched.rows(first, 2)
    watched.rows(second, 3)
    watched.rows(third, 4)
    page, lists = read(by_id[second])  # all running runs by the same listing
    assert lists == 2  # and one for rollouts, as there are new rows
    assert (len(page.curves["loss"]), len(page.best_curves["loss"])) == (3, 4)
    page, lists = read(by_id[third])
    assert (len(page.best_curves["loss"]), lists) == (5, 1)
    for run in (second, third):
        watched.rows(run, 9)
        watched.scene.worker(run, 1, Event.SUCCEEDED)
    after = {run.id: run for run in watched.poller.check().runs}
    page, _ = read(after[third])
    assert page.best_curves["loss"][-1] == (9.0, 0.1)  # the last rows of a finished run
    assert read(after[third])[1] == 1  # for its own run, which still runs
    reader = PageReader(watched.poller.run(second), "loss", watched.poller.run)
    assert read(after[third])[0].curves["loss"][-1] == (9.0, 0.1)
    assert read(after[third])[1] == 0
