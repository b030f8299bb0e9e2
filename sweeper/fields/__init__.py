"""Declares fields once: their types, defaults, bounds and texts.

nodes        reads YAML text into nodes that know their position; has the limits
data         makes the same nodes from Python data
kinds        types of fields: each reads a value, and makes its part of a JSON Schema
options      the options of a backend: a section from a type
sections     a mapping of fields: reads it with all mistakes, and makes its JSON Schema
config_file  the user's configuration file

Libraries were tried for this. msgspec and pydantic report the first mistake of a value in their
own words (a regular expression, `Expected str | null`), without the nearest key. Every message
would have to be written again next to the types, and they add 30 and 120 ms of imports to a plan.
Here about forty lines for each kind read, report and document it, and nothing is imported."""
