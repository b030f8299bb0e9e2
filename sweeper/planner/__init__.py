"""Makes the plan of a grid. `plan` calls the steps in order: `expansion` (with `product`) makes the
cells, `cells` names them, and `checks` checks the runs. `stages` does this for each stage."""
