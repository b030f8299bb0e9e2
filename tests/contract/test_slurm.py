"""What a real Slurm refuses before anything is recorded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sweeper.backends import open_backend
from sweeper.errors import EnvironmentFailure

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"partition": "nowhere"}, "invalid partition .*: a job asks for --partition=nowhere "),
    ({"partition": "urgent,nowhere"}, "--partition=urgent,nowhere"),
    ({"cpus": 1000}, "configuration is not available: .* --cpus-per-task=1000 "),
    ({"cpus": 9, "partition": "urgent"}, "--partition=urgent --cpus-per-task=9"),
    ({"mem": "1T"}, "configuration is not available: .* --mem=1T"),
    ({"mem": "much"}, "Invalid --mem .*--mem=much"),
    ({"mem": "4 GB"}, "--mem=4 GB"),
    ({"gres": "gpu:1"}, "--gres=gpu:1"),
    ({"gres": "gpu:a100:8"}, "--gres=gpu:a100:8"),
    ({"constraint": "a100"}, "--constraint=a100"),
    ({"extra": ["--frob"]}, "unrecognized option .*--frob"),
    ({"extra": ["--nodes=99"]}, "--nodes=99"),
    ({"extra": ["--nodes=many"]}, "--nodes=many"),
    ({"extra": ["--nodelist=n99"]}, "--nodelist=n99"),
    ({"extra": ["--exclude=n99"]}, "--exclude=n99"),
    ({"extra": ["--licenses=matlab:2"]}, "--licenses=matlab:2"),
    ({"extra": ["--dependency=afterok:nope"]}, "--dependency=afterok:nope"),
    ({"extra": ["--begin=someday"]}, "--begin=someday"),
    ({"extra": ["--deadline=soon"]}, "--deadline=soon"),
    ({"extra": ["--gpus-per-node=2"]}, "--gpus-per-node=2"),
    ({"extra": ["--mail-type=never"]}, "--mail-type=never"),
    ({"extra": ["--exclusive=maybe"]}, "--exclusive=maybe"),
    ({"extra": ["--ntasks=0"]}, "--ntasks=0"),
]


@pytest.mark.parametrize(
    ("options", "message"), REFUSED, ids=[str(options) for options, _ in REFUSED]
)
def test_preflight_refuses_in_one_line_with_the_options(
    slurm: Any, tmp_path: Path, options: Mapping[str, object], message: str
) -> None:
    backend = open_backend("slurm", "sweep", str(tmp_path / "sweep"))
    backend.preflight([{}])
    before = slurm.run("squeue", "-h", "-o", "%i").split()
    with pytest.raises(EnvironmentFailure, match=message) as caught:
        backend.preflight([{}, options])
    error = str(caught.value)
    assert error.startswith("slurm: sbatch: ") and error.endswith(" (launch.slurm)")
    assert "\n" not in error and "--signal" not in error
    assert {*slurm.run("squeue", "-h", "-o", "%i").split()} <= {*before}
    assert not (tmp_path / "sweep").exists()
