"""Declares fields once: their types, defaults, bounds and texts. `nodes` and `data` read values,
`kinds` are types of fields, `sections` are mappings of fields, and `options` are the options of
backends."""

# Libraries were tried. msgspec and pydantic report only the first mistake of a value, in their own
# words and without the nearest key, and they add 30 and 120 ms of imports to a plan.
