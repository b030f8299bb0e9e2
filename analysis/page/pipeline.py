"""Writes a page about all stages of a sweep: the results of each stage, and each chain of runs
from the first stage to the last, with its result and its total cost. The page links to the
reports of the stages."""

import functools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.analysis import labels
from sweeper.analysis.page.html import asset, environment, policy
from sweeper.analysis.page.report import Report
from sweeper.analysis.reading.costs import Priced
from sweeper.analysis.reading.sources import write_file
from sweeper.metrics.objective import sign_of
from sweeper.money.prices import money
from sweeper.results.stage_graph import of_stage
from sweeper.results.sweeps import Sweep, SweepRun
from sweeper.sweep.labels import plural
from sweeper.sweep.plan import Stage
from sweeper.sweep.stage_runs import depths
from sweeper.sweep.states import State

CHAINS = 200
"""The largest number of chains on the page. The JSON document has all chains."""


@dataclass(frozen=True)
class StageFound:
    """A stage, the states of its runs, and the results of its report. `report` is None if there is
    nothing to compare yet. `usd` is None if the cost is unknown."""

    name: str
    depth: int
    what: str
    metric: str | None
    states: Mapping[str, int]
    to_come: int
    verdict: str | None
    best: str | None
    against: str | None
    report: str | None
    tokens: int
    usd: float | None


@dataclass(frozen=True)
class Link:
    """A run in a chain, and the value by which it is judged."""

    stage: str
    run: str
    state: str
    value: float | None


@dataclass(frozen=True)
class Chain:
    """A chain of runs. Each run in `links` but the first started from a checkpoint of the run
    before. No run started from the last. `tokens` and `usd` are sums over the runs of the chain."""

    links: tuple[Link, ...]
    tokens: int
    usd: float | None

    @property
    def last(self) -> Link:
        """The last run of the chain."""
        return self.links[-1]


@dataclass(frozen=True)
class Pipeline:
    """A sweep with stages. Chains are sorted by the stage of their last run (the latest stage
    first), and then by the value of this run (the best first). `used` is a text about the usage of
    all runs."""

    name: str
    stages: tuple[StageFound, ...]
    chains: tuple[Chain, ...]
    used: str | None
    prices: str | None


def pipeline(sweep: Sweep, reports: Mapping[str, Report]) -> Pipeline:
    """Return the stages and chains of a sweep. `reports` maps the names of stages to their
    reports."""
    priced = Priced()
    deep = depths(sweep.plan.stages)
    runs = [run for run in sweep.runs if not run.retired or run.attempts]
    stages = [
        _pipeline_of(sweep, stage, deep[stage.name], reports.get(stage.name), runs, priced)
        for stage in sweep.plan.stages
    ]
    above = {parent for run in runs for parent in run.parents}
    ends = [run for run in runs if run.id not in above]
    chains = [_chain(run, priced) for run in ends]
    return Pipeline(
        name=sweep.name,
        stages=tuple(stages),
        chains=tuple(sorted(chains, key=functools.partial(_place, sweep))),
        used=priced.of_sweep(sweep),
        prices=priced.basis_of([run.usage for run in runs]),
    )


def _pipeline_of(
    sweep: Sweep,
    stage: Stage,
    depth: int,
    report: Report | None,
    runs: Sequence[SweepRun],
    priced: Priced,
) -> StageFound:
    stage_runs = [run for run in runs if run.stage == stage.name]
    verdict: Mapping[str, Any] = {} if report is None else report.document["verdict"]
    used = [run.usage for run in stage_runs]
    cells = {} if report is None else {cell["cell"]: cell for cell in report.document["cells"]}
    best = cells.get(verdict.get("best"))
    return StageFound(
        name=stage.name,
        depth=depth,
        what=of_stage(stage),
        metric=stage.metric and f"{stage.metric.name}, {_direction(stage.metric.goal)}",
        states=dict(Counter(run.state.value for run in stage_runs)),
        to_come=sweep.plan.unknown.get(stage.name, 0),
        verdict=verdict.get("label"),
        best=None if best is None else _best(best),
        against=verdict.get("against"),
        report=None if report is None else f"{stage.name}/report.html",
        tokens=sum(usage.counts.tokens for usage in used),
        usd=priced.sum_of(used),
    )


def _direction(goal: str) -> str:
    return "lower is better" if goal == "minimize" else "higher is better"


def _best(cell: Mapping[str, Any]) -> str:
    value = labels.number(cell["mean"], 4)
    return f"{cell['cell'].partition('/')[2] or cell['cell']}: {value}"


def _chain(run: SweepRun, priced: Priced) -> Chain:
    runs = (*reversed(run.lineage), run)
    used = [run.usage for run in runs]
    links = tuple(
        Link(run.stage or "", run.name.partition("/")[2], run.state.value, run.record()["value"])
        for run in runs
    )
    return Chain(links, sum(usage.counts.tokens for usage in used), priced.sum_of(used))


def _place(sweep: Sweep, chain: Chain) -> tuple[int, bool, float, str]:
    names = [stage.name for stage in sweep.plan.stages]
    stage = sweep.plan.stage(chain.last.stage)
    value = chain.last.value
    sign = sign_of("minimize" if stage is None or stage.metric is None else stage.metric.goal)
    missing = value is None or chain.last.state != State.SUCCEEDED.value
    return -names.index(chain.last.stage), missing, (value or 0.0) * sign, chain.last.run


def _document(pipeline: Pipeline) -> dict[str, Any]:
    return {
        "schema": 1,
        "sweep": pipeline.name,
        "used": pipeline.used,
        "prices": pipeline.prices,
        "stages": [{**vars(stage), "states": dict(stage.states)} for stage in pipeline.stages],
        "chains": [
            {**vars(chain), "links": [vars(link) for link in chain.links]}
            for chain in pipeline.chains
        ],
    }


def write(
    pipeline: Pipeline, sweep: Sweep, out: str | None = None, *, markdown: bool = True
) -> str:
    """Write `report.html`, `report.json` and (with `markdown`) `report.md` to the folder `out`
    (default: the sweep's `report/`). Return the path of the page. Raises `UsageError` if `out` is
    not a folder, and `StoreError` if a file cannot be written."""
    files = {
        "report.json": json.dumps(_document(pipeline), indent=1, allow_nan=False) + "\n",
        **({"report.md": "\n".join(_lines(pipeline)) + "\n"} if markdown else {}),
        "report.html": _page(pipeline),
    }
    encoded = {name: text.encode("utf-8", "replace") for name, text in files.items()}
    if out is None:
        return sweep.write_report(encoded)[-1]
    return [write_file(out, name, data) for name, data in encoded.items()][-1]


def _lines(pipeline: Pipeline) -> Iterator[str]:
    """Yield the page as Markdown."""
    from sweeper.analysis.page.markdown import escape, table

    yield f"# {escape(pipeline.name)}: {plural(len(pipeline.stages), 'stage')}\n"
    if pipeline.used:
        yield f"The runs {escape(pipeline.used)}.\n"
    head = ("stage", "runs", "verdict", "best cell", "metric", "tokens", "$")
    yield from table(head, (_stage_texts(stage) for stage in pipeline.stages))
    yield ""
    for stage in pipeline.stages:
        if stage.report is not None:
            address = stage.report.removesuffix(".html")
            yield f"- [Report of {escape(stage.name)}]({address}.md)"
    yield f"\n## Chains\n\n{CHAINS_ARE}\n"
    head = ("chain, with the value of each run", "tokens", "$")
    yield from table(head, (_chain_texts(chain) for chain in pipeline.chains[:CHAINS]))
    if len(pipeline.chains) > CHAINS:
        yield f"\nThe first {CHAINS} of {len(pipeline.chains)} chains; report.json has all."


CHAINS_ARE = (
    "Each line is a chain: the runs of the earlier stages, and the last run, from which no other "
    "run continues. Tokens and dollars are those of the whole chain."
)


def _stage_texts(stage: StageFound) -> list[str]:
    states = [f"{count} {state}" for state, count in stage.states.items()]
    states += [f"{stage.to_come} to come"] if stage.to_come else []
    verdict = ", ".join(text for text in (stage.verdict, stage.against) if text)
    return [
        f"{stage.name} ({stage.what})",
        ", ".join(states) or labels.NONE,
        verdict or labels.NONE,
        stage.best or labels.NONE,
        stage.metric or labels.NONE,
        *_spent(stage.tokens, stage.usd),
    ]


def _chain_texts(chain: Chain) -> list[str]:
    links = [f"{link.stage} {link.run} ({_outcome(link)})" for link in chain.links]
    return [", then ".join(links), *_spent(chain.tokens, chain.usd)]


def _outcome(link: Link) -> str:
    ended = link.state == State.SUCCEEDED.value and link.value is not None
    return labels.number(link.value) if ended else link.state


def _spent(tokens: int, usd: float | None) -> tuple[str, str]:
    return (
        labels.amount(tokens) if tokens else labels.NONE,
        labels.NONE if usd is None else money(usd),
    )


def _page(pipeline: Pipeline) -> str:
    from markupsafe import Markup

    shown = pipeline.chains[:CHAINS]
    visited = {link.stage for chain in shown for link in chain.links}
    columns = [stage.name for stage in pipeline.stages if stage.name in visited]
    template = environment().get_template("pipeline.html.j2")
    return template.render(
        policy=policy([]),
        css=Markup(asset("report.css")),  # noqa: S704 - a file of ours
        found=pipeline,
        columns=columns,
        rows=[(chain, {link.stage: link for link in chain.links}) for chain in shown],
        shown=CHAINS,
        priced=any(stage.usd is not None for stage in pipeline.stages),
        labels=labels,
        money=money,
        chains_are=CHAINS_ARE,
    )
