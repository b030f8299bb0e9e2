"""The tools that help an agent to write a grid: recipes, models and prices, datasets, numbers of
seeds. Agents read the docstrings and argument descriptions of tools."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from sweeper.agents import hub, local_data
from sweeper.agents.answers import MOST, Ours, Text, page
from sweeper.agents.arguments import Arguments, Metric, Name, Number, Size
from sweeper.agents.workspace import Workspace
from sweeper.errors import UsageError

_SECONDS = 20.0
_ROW = 2_000
"""The largest number of characters shown of a value."""
_SHOWN = 10
"""The largest number of rows in an answer."""
_SAVED = 20_000
"""The largest number of rows that one call saves."""


class Dataset(Arguments):
    """A request to search for datasets, or to describe, read or save one."""

    name: Annotated[
        str,
        Field(
            max_length=500,
            description="a file below the grids folder, or a dataset of the hub (owner/name)",
        ),
    ] = ""
    search: Annotated[
        str,
        Field(max_length=200, description="without `name`: list the datasets that match this text"),
    ] = ""
    place: Annotated[
        Literal["local", "hub"],
        Field(description="local: files below the grids folder; hub: the Hugging Face Hub"),
    ] = "local"
    config: Annotated[
        str, Field(max_length=200, description="configuration of a hub dataset, such as main")
    ] = ""
    split: Annotated[
        str, Field(max_length=200, description="split of a hub dataset, such as train")
    ] = ""
    offset: Annotated[
        int, Field(ge=0, le=1_000_000_000, description="the first row to read; 0 is the first")
    ] = 0
    rows: Annotated[
        int,
        Field(
            ge=0,
            le=_SAVED,
            description=f"rows to read ({_SHOWN} are shown, all are saved); 0: only features",
        ),
    ] = 3
    save: Annotated[
        str,
        Field(
            max_length=300,
            description="write the rows to this new file below the grids folder, such as "
            "data/train.jsonl",
        ),
    ] = ""
    columns: Annotated[
        dict[str, str],
        Field(
            max_length=50,
            description="the source column of each key in the saved rows, such as "
            "{'prompt': 'question', 'answer': 'answer'}; {}: all columns unchanged",
        ),
    ] = {}  # noqa: RUF012 - pydantic copies it


class Preparing:
    """Tools for an agent that prepares a grid. Each returns JSON values or raises
    `SweeperError`."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def recipes(
        self,
        name: Annotated[str, Field(max_length=100, description="a recipe; empty: list all")] = "",
    ) -> dict[str, object]:
        """List the recipes, which are the programs that runs execute. With a `name`, return a
        grid to start from, with the type, default and meaning of every field. Write it to a
        .yaml file in the grids folder, change it, and `plan` it. A grid can also run a program
        of your own, with `command: [python, train.py, --lr, "{lr}"]` in place of `recipe`."""
        from sweeper.grid.starter import recipe_names, starter_text

        names = recipe_names()
        if not name:
            return {"recipes": list(names)}
        if name not in names:
            raise UsageError(f"no recipe {name!r}: choose from {', '.join(names)}")
        text, lacks = starter_text(name, name, {}, "-")
        return {"recipe": name, "grid": Ours(text), "lacks": lacks}

    def models(
        self,
        service: Annotated[
            Literal["tinker", "local"],
            Field(
                description="tinker: the hosted service; local: the engine on this machine, which "
                "the first launch starts (it has tiny/qwen3)"
            ),
        ] = "tinker",
        search: Annotated[
            str, Field(max_length=200, description="only models with this text in their names")
        ] = "",
        number: Number = 1,
        size: Size = 20,
    ) -> dict[str, object]:
        """List the models of a service, each with its longest context and its price in dollars
        per million tokens, with the date of the price (null if no price is known)."""
        from sweeper.money import prices
        from sweeper.results.service_models import offered
        from sweeper.results.service_requests import of_service

        table = prices.load().models
        models = [
            model
            for model in offered(of_service(service), _SECONDS)
            if search.lower() in model.model_name.lower()
        ]
        chosen = page(models, number, size)
        shown: list[dict[str, object]] = []
        for model in chosen.items:
            price = table.get(model.model_name)
            usd = None if price is None else price._asdict() | {"dates": price.dated}
            shown.append({**model._asdict(), "usd_per_million_tokens": usd})
        return chosen.under("models", shown)

    def datasets(self, request: Dataset) -> dict[str, object]:
        """Search for datasets. With a `name`, return the dataset's features, splits and some
        rows. With `save`, write rows to a JSONL file. To read rows of a hub dataset, give
        `config` and `split`; call without them first to see which exist. Read rows before you
        train on them. The setting `data` of most recipes needs rows with `prompt` and `answer`,
        or with `messages`: rename columns with `columns`. `saved` has the path of the file:
        write this path into your grid."""
        grids = self._workspace.grids
        if not request.name:
            if request.save:
                raise UsageError("`save` also needs the dataset's `name`")
            if request.place == "hub":
                return {"datasets": hub.search_hub(request.search, MOST)}
            return {"datasets": local_data.search_local(grids, request.search)[:MOST]}
        if request.place == "hub":
            described: dict[str, object] = {"configs": hub.describe(request.name)}
            if not (request.config and request.split):
                if request.save:
                    raise UsageError("`save` also needs the dataset's `config` and `split`")
                return {"name": request.name, **described}
            read = hub.read_rows(
                request.name, request.config, request.split, request.offset, request.rows
            )
        else:
            described = local_data.features(grids, request.name)
            read = local_data.read_local(grids, request.name, request.offset, request.rows)
        saved = None
        if request.save:
            path = local_data.save(grids, request.save, _chosen(read.rows, request.columns))
            saved = {"path": path, "rows": len(read.rows)}
        shown = [
            {key: Text(str(value), _ROW) for key, value in row.items()}
            for row in read.rows[:_SHOWN]
        ]
        answer = {"name": request.name, **described, "total": read.total, "offset": request.offset}
        return {**answer, "rows_shown": shown, "saved": saved}

    def power(
        self,
        cells: Annotated[
            int, Field(ge=2, le=1000, description="the number of cells that are compared")
        ] = 2,
        lead: Annotated[
            float | None,
            Field(
                gt=0,
                le=1000,
                description="the lead to detect, in standard deviations between seeds",
            ),
        ] = None,
        sweep: Name | None = None,
        metric: Metric = None,
    ) -> dict[str, object]:
        """Choose the number of seeds before you launch. For each number of seeds per cell,
        return the smallest lead of the best cell that is detected in four of five sweeps. With a
        `lead`, also return how many seeds are enough to detect this lead. With a finished
        `sweep`, also return each lead as a difference of the sweep's metric, estimated from the
        noise between its seeds."""
        from sweeper.analysis.comparison.power import SEEDS, lead_found, lead_text, seeds_for
        from sweeper.analysis.comparison.power import noise_of as noise_of_sweep

        table = [{"seeds": seeds, "lead": round(lead_found(cells, seeds), 2)} for seeds in SEEDS]
        answer: dict[str, object] = {
            "cells": cells,
            "unit": Ours("standard deviations between seeds"),
            "leads": table,
            "seeds_for_lead": None if lead is None else seeds_for(lead, cells),
        }
        if sweep is None:
            return answer
        ranking, deviation = noise_of_sweep(self._workspace.registry, sweep, metric)
        if deviation is None:
            raise UsageError(
                f"{sweep}: the noise is unknown, because no cell has values from two seeds"
            )
        leads = [lead_text(ranking, deviation * lead_found(cells, seeds)) for seeds in SEEDS]
        by_seeds = [row | {"difference": text} for row, text in zip(table, leads, strict=True)]
        return answer | {"leads": by_seeds, "noise_of": sweep, "deviation": deviation}


def _chosen(
    rows: Sequence[dict[str, object]], columns: Mapping[str, str]
) -> Sequence[dict[str, object]]:
    """Rename columns, and drop all others. `columns` is a dict from new to old name; if it is
    empty, the rows are returned unchanged. Raises `UsageError`."""
    if not columns:
        return rows
    for number, row in enumerate(rows):
        if missing := [column for column in columns.values() if column not in row]:
            raise UsageError(
                f"columns: row {number} has no {missing[0]!r}; it has {', '.join(map(repr, row))}"
            )
    return [{key: row[column] for key, column in columns.items()} for row in rows]
