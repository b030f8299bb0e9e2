"""The tools that help to write a grid: models and prices, datasets, numbers of seeds. Agents read
the docstrings and argument descriptions of tools."""

from typing import Annotated, Literal

from pydantic import Field

from sweeper.agents import hub, local_data
from sweeper.agents.answers import MOST, Ours, Text, page
from sweeper.agents.arguments import Arguments, Metric, Name, Number, Size
from sweeper.agents.workspace import Workspace
from sweeper.errors import UsageError

_SECONDS = 20.0
_ROW = 2_000
"""The most characters of a value of a row."""
_SAVED = 20_000
"""The most rows that are saved at once."""


class Dataset(Arguments):
    """What to search, describe, read or save."""

    name: Annotated[
        str,
        Field(max_length=500, description="a file below the grids folder, or a dataset of the hub"),
    ] = ""
    search: Annotated[
        str, Field(max_length=200, description="without a name: list datasets with this text")
    ] = ""
    place: Annotated[
        Literal["local", "hub"], Field(description="files below the grids folder, or the hub")
    ] = "local"
    config: Annotated[str, Field(max_length=200, description="of the hub: as `main`")] = ""
    split: Annotated[str, Field(max_length=200, description="of the hub: as `train`")] = ""
    offset: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    rows: Annotated[int, Field(ge=0, le=_SAVED, description="0: only the features")] = 3
    save: Annotated[
        str, Field(max_length=300, description="write the rows to this new .jsonl file")
    ] = ""


class Preparing:
    """Tools to look things up before a grid is written. Each returns plain values and raises
    `SweeperError`."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def models(
        self,
        service: Literal["tinker", "local"] = "tinker",
        search: Annotated[str, Field(max_length=200, description="only with this text")] = "",
        number: Number = 1,
        size: Size = 20,
    ) -> dict[str, object]:
        """List the models of a service: the longest context, and dollars per million tokens with
        the date of the price (null if no price is known)."""
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

    def datasets(self, asked: Dataset) -> dict[str, object]:
        """Search datasets; return the features, the splits and some rows of one; save rows as JSON
        Lines below the grids folder, where a grid's `data` finds them. Read rows before you train
        on them. A split of the hub needs `config` and `split`: ask without them first."""
        grids = self._workspace.grids
        if not asked.name:
            if asked.save:
                raise UsageError("save: name the dataset whose rows are saved")
            if asked.place == "hub":
                return {"datasets": hub.search_hub(asked.search, MOST)}
            return {"datasets": local_data.search_local(grids, asked.search)[:MOST]}
        if asked.place == "hub":
            described: dict[str, object] = {"configs": hub.describe(asked.name)}
            if not (asked.config and asked.split):
                if asked.save:
                    raise UsageError("save: give `config` and `split`")
                return {"name": asked.name, **described}
            read = hub.read_rows(asked.name, asked.config, asked.split, asked.offset, asked.rows)
        else:
            described = local_data.features(grids, asked.name)
            read = local_data.read_local(grids, asked.name, asked.offset, asked.rows)
        saved = None
        if asked.save:
            local_data.save(grids, asked.save, read.rows)
            saved = {"file": asked.save, "rows": len(read.rows)}
        shown = [
            {key: Text(str(value), _ROW) for key, value in row.items()} for row in read.rows[:10]
        ]
        answer = {"name": asked.name, **described, "total": read.total, "offset": asked.offset}
        return {**answer, "rows_shown": shown, "saved": saved}

    def power(
        self,
        cells: Annotated[int, Field(ge=2, le=1000, description="how many are compared")] = 2,
        lead: Annotated[
            float | None,
            Field(gt=0, le=1000, description="in standard deviations between seeds"),
        ] = None,
        sweep: Name | None = None,
        metric: Metric = None,
    ) -> dict[str, object]:
        """Say which lead of the best cell a number of seeds per cell finds in four of five sweeps,
        and how many seeds find the given `lead`. With a finished `sweep`, also as a difference of
        its metric, by the noise between its seeds. Choose seeds with it before you launch."""
        from sweeper.analysis.comparison.power import SEEDS, lead_found, lead_text, seeds_for
        from sweeper.analysis.comparison.power import noise_of as noise_of_sweep

        table = [{"seeds": seeds, "lead": lead_found(cells, seeds)} for seeds in SEEDS]
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
            raise UsageError(f"{sweep}: no cell has two seeds with a value: its noise is unknown")
        found = [lead_text(ranking, deviation * lead_found(cells, seeds)) for seeds in SEEDS]
        by_seeds = [row | {"difference": text} for row, text in zip(table, found, strict=True)]
        return answer | {"leads": by_seeds, "noise_of": sweep, "deviation": deviation}
