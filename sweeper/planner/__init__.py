"""From a grid to a plan: each step hands on to the next, and none is gone back to.

expansion   a grid, as `sweeper.grid` has read it -> its cells, with their runs' configurations
cells       -> what cells are called, and their runs' ids
checks      -> what is wrong with them, by the recipe and beside each other
plan        all of it in this order
points      what the steps hand on; product: how a grid's axes become cells
"""
