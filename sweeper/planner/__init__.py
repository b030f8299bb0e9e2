"""Makes a plan of a grid, in steps of which each uses only what those before have made.

expansion   a grid, as `sweeper.grid` has read it -> its cells, with their runs' configurations
cells       -> the cells' names, and their runs' ids
checks      -> what is wrong with them, by the recipe and beside each other
plan        calls these in order
points      the types that they hand on; product: how a grid's axes become cells
"""
