"""Declared fields: each has its type, default, bounds and description in one place. `nodes` and
`data` read values, `kinds` are the types of fields, `sections` are mappings of fields, and
`options` are the options of backends."""

# msgspec and pydantic were tried. They report only the first mistake of a value, in their own words
# and without suggesting the nearest key, and they add 30 and 120 ms of imports to a plan.
