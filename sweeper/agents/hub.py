"""Access to datasets of the Hugging Face Hub over HTTP: search, features, rows. `HF_ENDPOINT` is
the address of another hub, which must also serve the paths of the dataset viewer. `HF_TOKEN`
gives access to private datasets."""

import json
import os
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from sweeper.common.json_values import is_list, is_number, is_table, list_of, table_of
from sweeper.errors import EnvironmentFailure, NotFound

_HUB = "https://huggingface.co"
_VIEWER = "https://datasets-server.huggingface.co"
_SECONDS = 30.0
_LARGEST = 50_000_000
_PAGE = 100
"""The largest number of rows that the viewer returns per request."""


class Rows(NamedTuple):
    """Some rows of a split of a dataset, and the total number of rows of the split."""

    rows: list[dict[str, object]]
    total: int


def search_hub(text: str, most: int) -> list[dict[str, object]]:
    """Search the hub for `text`. Return the names, downloads and likes of at most `most`
    datasets. Raises `EnvironmentFailure`."""
    hub, _ = _addresses()
    answer = _ask(hub, "/api/datasets", search=text, limit=str(most))
    records = [table_of(entry) for entry in list_of(answer)]
    return [
        {"name": str(record.get("id", "")), **{k: record.get(k) for k in ("downloads", "likes")}}
        for record in records
    ]


def describe(name: str) -> dict[str, object]:
    """For each configuration of a dataset, return its features and the number of rows of each
    split. Raises `NotFound`, `EnvironmentFailure`."""
    _, viewer = _addresses()
    answer = table_of(table_of(_ask(viewer, "/info", dataset=name)).get("dataset_info"))
    described: dict[str, object] = {}
    for config, value in answer.items():
        info = table_of(value)
        splits = table_of(info.get("splits"))
        described[config] = {
            "features": _plain(info.get("features")),
            "splits": {name: table_of(split).get("num_examples") for name, split in splits.items()},
        }
    return described


def _plain(feature: object) -> object:
    """Return a feature's type: a word such as `string`, a list of types, or {name: type}."""
    if is_list(feature):
        return [_plain(inner) for inner in feature]
    if not is_table(feature):
        return str(feature)
    if isinstance(kind := feature.get("_type"), str):
        inner = feature.get("feature")
        return [_plain(inner)] if inner is not None else str(feature.get("dtype", kind))
    return {name: _plain(inner) for name, inner in feature.items()}


def read_rows(name: str, config: str, split: str, offset: int, count: int) -> Rows:
    """Return up to `count` rows of a split, beginning at row `offset`. Raises `NotFound`,
    `EnvironmentFailure`."""
    _, viewer = _addresses()
    rows: list[dict[str, object]] = []
    total = offset + count
    while len(rows) < count and offset + len(rows) < total:
        length = min(_PAGE, count - len(rows))
        answer = table_of(
            _ask(
                viewer,
                "/rows",
                dataset=name,
                config=config,
                split=split,
                offset=str(offset + len(rows)),
                length=str(length),
            )
        )
        page = [table_of(table_of(entry).get("row")) for entry in list_of(answer.get("rows"))]
        size = answer.get("num_rows_total")
        rows += page
        total = int(size) if is_number(size) else offset + len(rows)
        if not page:
            break
    return Rows(rows, total)


def _addresses() -> tuple[str, str]:
    """Return the addresses of the hub and of its dataset viewer. Raises `EnvironmentFailure`."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        raise EnvironmentFailure(
            "HF_HUB_OFFLINE is set, so only local datasets can be read: unset it to use the hub"
        )
    hub = os.environ.get("HF_ENDPOINT", "").rstrip("/") or _HUB
    if urlsplit(hub).scheme not in ("http", "https"):
        raise EnvironmentFailure(f"HF_ENDPOINT is {hub}: it must begin with https://")
    return hub, _VIEWER if hub == _HUB else hub


def _ask(address: str, path: str, **query: str) -> object:
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import ProxyHandler, Request, build_opener

    token = os.environ.get("HF_TOKEN")
    request = Request(f"{address}{path}?{urlencode(query)}")  # noqa: S310 - http(s)
    if token:  # do not send the token to another host that the hub redirects to
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    here = urlsplit(address).hostname in ("127.0.0.1", "::1", "localhost")
    opener = build_opener(*([ProxyHandler({})] if here else []))
    dataset = query.get("dataset", "datasets")
    try:
        with opener.open(request, timeout=_SECONDS) as answer:
            return json.loads(answer.read(_LARGEST))
    except HTTPError as error:
        error.close()
        if error.code in (401, 404):
            raise NotFound(
                f"{address} has no dataset {dataset!r}, or the dataset lacks the requested rows: "
                "search for the dataset's name, or set HF_TOKEN for a private dataset"
            ) from error
        raise EnvironmentFailure(
            f"{address} refuses the request for {dataset} (HTTP {error.code})"
        ) from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise EnvironmentFailure(f"{address} does not answer: {reason}") from error
    except (ValueError, RecursionError) as error:
        raise EnvironmentFailure(f"{address}: the answer about {dataset} is not JSON") from error
