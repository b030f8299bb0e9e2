"""Costs of tokens: an unknown price is never zero, and a malformed table is refused."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support import written

from sweeper.cli import main
from sweeper.errors import UsageError
from sweeper.money import prices
from sweeper.sweep.usage import Counts, Usage


@pytest.fixture(autouse=True)
def own_configuration(config_file: Path) -> None:
    """Use a configuration without prices."""


def table(**row: object) -> bytes:
    return json.dumps([{"tinker_id": "m", **row}]).encode()


def test_an_amount_is_the_sum_of_its_kinds() -> None:
    price_table = prices.read(table(prefill="$1", sample=2, train="3"), "p.json", "2026-11-01")
    usage = Usage({"m": Counts(prefill=1_000_000, cached=1_000_000, sample=500_000, train=10)})
    cost = prices.amount(usage, price_table)
    assert cost.usd == pytest.approx(1 + 0.2 + 1 + 0.00003)
    assert cost.basis == "prices of 2026-11-01"


def test_the_newer_of_two_prices_counts() -> None:
    document = {
        "date": "2026-10",
        "models": [
            {"tinker_id": "m", "prefill": 2, "sample": "$3"},
            {"tinker_id": "m", "date": "2026-06", "prefill": 1, "sample": 1, "train": 4},
            {"tinker_id": "old", "date": "2026-06", "train": 1},
        ],
    }
    table = prices.read(json.dumps(document).encode(), "p.json")
    assert table.models["m"][:4] == (2.0, 0.4, 3.0, 4.0)
    assert table.models["m"].dated == "2026-06 (train), 2026-10"
    prompts = prices.amount(Usage({"m": Counts(prefill=1_000_000)}), table)
    assert (prompts.usd, prompts.basis) == (2.0, "prices of 2026-10")
    trained = prices.amount(Usage({"m": Counts(prefill=10, train=10)}), table)
    assert trained.basis == "prices of 2026-06 to 2026-10"
    assert prices.amount(Usage({"old": Counts(train=1)}), table).basis == "prices of 2026-06"


@pytest.mark.parametrize(("date", "price"), [("2026-05", 0.195), ("2026-10-02", 9.5), (None, 9.5)])
def test_a_user_price_counts_unless_the_package_has_a_newer_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], date: str | None, price: float
) -> None:
    """A table without a date has the date on which the user gave it."""
    row = {"tinker_id": "Qwen/Qwen3-8B", "prefill": 9.5}
    file = tmp_path / "models.json"
    file.write_text(json.dumps({"models": [row]} | ({"date": date} if date else {})))
    assert main(["costs", "--prices", "--refresh", str(file), "--json"]) == 0
    rows = {row["model"]: row for row in json.loads(capsys.readouterr().out)["models"]}
    assert rows["Qwen/Qwen3-8B"]["prefill"] == price and rows["Qwen/Qwen3-8B"]["train"] == 0.44
    assert rows["Qwen/Qwen3-8B"]["dates"]["train"] == "2026-10"


def test_the_packaged_table_has_the_models_of_tinker() -> None:
    table = prices.load()
    assert len(table.models) == 24
    assert all(price.prefill and price.sample for price in table.models.values())
    assert [name for name, price in table.models.items() if price.train is None] == [
        "thinkingmachines/Inkling:peft:262144"
    ]


def test_unpriced_usage_is_reported() -> None:
    price_table = prices.read(table(prefill="$1"), "p.json")
    usage = Usage({"m": Counts(train=5), "other": Counts(prefill=5)})
    assert prices.amount(usage, price_table) == prices.Amount(0.0, ("m", "other"))
    priced = Usage({"m": Counts(prefill=2_000_000), "other": Counts(steps=5)})
    assert prices.amount(priced, price_table) == prices.Amount(2.0, dates=("an unknown date",))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "p.json is not JSON"),
        (b"3", "p.json: should be an object, not 3"),
        (b"[]", "p.json: models: should be a list with a row for each model"),
        (b'[{"prefill": 1}]', "p.json: models[0].tinker_id: should be a string, but is missing"),
        (table(prefil="$1"), "models[0].prefill: should be dollars per million tokens"),
        (table(prefill="1,87"), 'models[0].prefill: should be dollars, such as "$1.87"'),
        (table(prefill=-1), 'models[0].prefill: should be dollars, such as "$1.87"'),
        (table(train=True), 'models[0].train: should be dollars, such as "$1.87"'),
    ],
)
def test_a_malformed_table_is_refused_with_its_place(data: bytes, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        prices.read(data, "p.json")
    assert message in str(caught.value)


def test_a_user_table_counts_until_it_is_reset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["costs", "--prices"]) == 0
    assert "Qwen/Qwen3-8B" in capsys.readouterr().out
    file = tmp_path / "models.json"
    file.write_bytes(table(prefill="$9.5"))
    assert main(["costs", "--prices", "--refresh", str(file), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["models"][0]["model"], shown["models"][0]["prefill"]) == ("m", 9.5)
    assert shown["source"].startswith(f"{file}; ") and shown["date"][:2] == "20"
    file.write_bytes(table(prefill="free"))
    assert main(["costs", "--prices", "--refresh", str(file)]) == 2  # the earlier table is kept
    assert "9.5" not in capsys.readouterr().err
    assert prices.load().models["m"].prefill == 9.5
    assert main(["costs", "--prices", "tiny/qwen3"]) == 2  # a name would be ignored
    assert main(["costs", "--prices", "--reset"]) == 0
    assert "Qwen/Qwen3-8B" in capsys.readouterr().out
    assert main(["costs", "--prices", "--refresh", str(tmp_path / "none")]) == 2
    assert main(["costs", "--prices", "--refresh", "http://127.0.0.1:9/models.json"]) == 6


def test_costs_of_a_sweep_by_run_cell_day_and_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Costs come from the outcome of each attempt, else from the metrics of the run."""
    file = tmp_path / "models.json"
    file.write_bytes(table(prefill=1, sample=1, train=1))
    assert main(["costs", "--prices", "--refresh", str(file)]) == 0
    sweep = written.Written(tmp_path / "root", "s", {"lr": [1, 2]})
    used = {"models": {"m": {"train": 1_000_000, "steps": 4}}}
    sweep.run({"lr": 1}, 0, state="preempted", usage=used)
    sweep.run({"lr": 1}, 0, attempt=2, usage=used)
    sweep.run({"lr": 2}, 0, [{"step": 0, "num_tokens": 300}, {"step": 1, "num_tokens": 400}])
    sweep.save()
    capsys.readouterr()

    def costs(*arguments: str) -> dict[str, dict[str, object]]:
        verb = ["costs", "s", "--root", str(tmp_path / "root"), "--json", *arguments]
        assert main(verb) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["total"]["train"] == 2_000_700
        return {row["value"]: row for row in document["costs"]}

    runs = costs("--by", "run")
    assert runs["lr=1,seed=0"]["usd"] == 2.0 and runs["lr=1,seed=0"]["steps"] == 8
    assert runs["lr=2,seed=0"]["counted"] == "metrics"
    assert runs["lr=1,seed=0"]["prices"] == [datetime.now(UTC).date().isoformat()]
    assert runs["lr=2,seed=0"]["usd"] is None and runs["lr=2,seed=0"]["unpriced"] == ["unknown"]
    assert list(costs()) == ["lr=1", "lr=2"]
    assert set(costs("--by", "model")) == {"m", "unknown"}
    assert sum(int(str(row["train"])) for row in costs("--by", "day").values()) == 2_000_700
    assert main(["costs", "s", "--root", str(tmp_path / "root")]) == 0
    printed = capsys.readouterr().out
    assert "no price known for unknown" in printed and "dollars at prices of 20" in printed


def test_costs_by_combinations_of_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(tmp_path / "root")
    sweep = written.Written(tmp_path / "root", "s", {"rank": [8, 32], "lr": [1, 2]})
    for rank in (8, 32):
        for lr in (1, 2):
            counts = {name: {"train": rank * size} for name, size in (("m", lr), ("judge", 10))}
            sweep.run({"rank": rank, "lr": lr}, 0, usage={"models": counts})
            ended = f"2026-11-2{lr}T23:00:00Z"
            sweep.run({"rank": rank, "lr": lr}, 1, usage={"models": counts}, ended=ended)
    sweep.save()

    def tokens_by(by: str) -> dict[object, int]:
        assert main(["costs", "s", "--root", root, "--json", "--by", by]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["by"] == by and document["total"]["train"] == 2 * 40 * 23
        values = (row["value"] for row in document["costs"])
        keys = [tuple(value) if isinstance(value, list) else value for value in values]
        return dict(zip(keys, (row["train"] for row in document["costs"]), strict=True))

    assert tokens_by("rank") == {8: 8 * 46, 32: 32 * 46}
    assert tokens_by("lr,model") == {
        (1, "m"): 80,
        (1, "judge"): 800,
        (2, "m"): 160,
        (2, "judge"): 800,
    }
    assert tokens_by("day,rank") == {
        ("2026-11-21", 8): 8 * 34, ("2026-11-21", 32): 32 * 34,
        ("2026-11-22", 8): 8 * 12, ("2026-11-22", 32): 32 * 12,
    }  # fmt: skip
    assert list(tokens_by("cell,model"))[:2] == [("rank=8,lr=1", "m"), ("rank=8,lr=1", "judge")]
    assert main(["costs", "s", "--root", root, "--by", "rank,model"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split()[:3] == ["rank", "model", "prefill"]
    assert [line.split()[:2] for line in printed[2:6]] == [
        ["8", "m"], ["8", "judge"], ["32", "m"], ["32", "judge"],
    ]  # fmt: skip
    assert printed[6].split()[0] == "all"
    for by, code, line in (
        ("ranks,model", 5, "no run has the setting 'ranks'; did you mean 'rank'?"),
        ("rank,rank", 2, "--by rank,rank: name each setting once"),
        ("rank,", 2, "--by rank,: name each setting once"),
        ("chain,rank", 2, "--by chain takes no other key"),
    ):
        assert main(["costs", "s", "--root", root, "--by", by]) == code
        assert line in capsys.readouterr().err
