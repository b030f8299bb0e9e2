"""Fields that are declared once: what they take, their defaults, bounds and words.

nodes     YAML text -> nodes that know their place in it; the limits
data      Python data -> the same nodes
kinds     what one field takes: how it is read, and its part of a JSON Schema
sections  a mapping of such fields: read with every mistake told, and its JSON Schema

A library was tried for this. msgspec and pydantic name the first mistake of a value in words of
their own (a regular expression, `Expected str | null`), without the nearest key, so that every
message would be made a second time beside the types; and they cost a plan 30 and 120 ms of import.
What is declared here is read, told and documented by the same forty lines a kind, with nothing to
import."""
