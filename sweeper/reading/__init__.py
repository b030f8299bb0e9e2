"""The verbs that read what was recorded, a module each: parse, ask the registry, print."""
