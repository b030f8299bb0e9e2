"""Typed contents of the documents in a store. Each kind of document has a reader, which names the
file and the place in it of any error. Uses little of the standard library and nothing else, since
the worker loads it (`dataclasses` alone takes 9 ms to load, so the types are `NamedTuple`s)."""
