"""What the documents of a store hold, with types: one reader for each kind, which says which file
and which place in it is not as it should be. Standard library only, and little of it: the worker
loads this (`dataclasses` alone takes 9 ms to load, so what is read is a `NamedTuple`)."""
