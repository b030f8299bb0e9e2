"""What coding agents use: a server of the Model Context Protocol over the same functions as the
verbs, and a skill that tells how research is done with them."""
