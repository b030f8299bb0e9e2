"""Makes the plan of a grid, in steps: `expansion` (with `product`) makes cells, `cells` names them,
`checks` checks the runs, `stages` plans each stage, and `plan` calls these in order."""
