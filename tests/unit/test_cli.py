"""The command line, parsed."""

import pytest

from sweeper import cli


def test_overrides_may_stand_behind_flags():
    given = ["launch", "grid.yaml", "a=1", "--wait", "~b", "--backend", "local", "c=[1,2]"]
    arguments = cli._parse(given)
    assert arguments.overrides == ["a=1", "~b", "c=[1,2]"]
    assert (arguments.wait, arguments.backend) == (True, "local")
    assert cli._parse(["cancel", "s", "--state", "failed", "x*"]).runs == ["x*"]


@pytest.mark.parametrize(
    "given", [["plan", "g.yaml", "--no-such"], ["plan", "g.yaml", "--json", "-x"], ["doctor", "x"]]
)
def test_what_nobody_knows_is_refused(given, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli._parse(given)
    assert stopped.value.code == 2
    assert "unrecognized arguments" in capsys.readouterr().err
