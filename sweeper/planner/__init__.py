"""Makes the plan of a grid, in steps. Each step uses only the results of earlier ones.

expansion   expands a grid, as `sweeper.grid` has read it, to its cells and their configurations
cells       names the cells, and makes the ids of their runs
checks      checks the runs, by the recipe and against each other
plan        calls these steps in order; stages: does so for each stage of a grid
points      the types that the steps exchange; product: makes cells from a grid's axes
"""
