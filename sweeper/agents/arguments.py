"""Arguments that several tools have in common, with bounds and with descriptions for agents."""

from typing import Annotated

from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase
from pydantic import Field

from sweeper.agents.answers import MOST

Name = Annotated[str, Field(min_length=1, max_length=300, description="a sweep's name")]
RunName = Annotated[
    str, Field(min_length=1, max_length=600, description="a run: sweep/run, or the run's id")
]
Cell = Annotated[str, Field(min_length=3, max_length=600, description="a cell: sweep/cell")]
Either = Annotated[
    str, Field(min_length=1, max_length=600, description="a sweep, or a cell (sweep/cell)")
]
Grid = Annotated[
    str, Field(min_length=1, max_length=500, description="a grid's path below the grids folder")
]
Overrides = Annotated[
    list[str],
    Field(
        max_length=100,
        description="values to set in the grid, such as max_steps=20 or 'lr=[1e-4,1e-3]'",
    ),
]
Selectors = Annotated[
    list[str],
    Field(
        max_length=200, description="names of runs, beginnings of names, globs or ids; []: all runs"
    ),
]
Number = Annotated[int, Field(ge=1, le=1_000_000, description="page number, starting at 1")]
Size = Annotated[int, Field(ge=1, le=MOST, description="entries per page")]
Metric = Annotated[
    str | None, Field(max_length=300, description="use this metric instead of the grid's metric")
]
Amount = Annotated[
    float | None,
    Field(
        ge=0, le=1e15, description="limit on the launch (default: all that is left of the budget)"
    ),
]


class Arguments(ArgModelBase):
    """The base class for the arguments of a tool with many arguments. The tool's function gets all
    arguments as one object, `request`."""

    def model_dump_one_level(self) -> dict[str, object]:
        """Return the keyword arguments for the tool's function."""
        return {"request": self}

    def set_values(self, *names: str) -> dict[str, float]:
        """Return the arguments in `names` whose value is not None."""
        return self.model_dump(include=set(names), exclude_none=True)
