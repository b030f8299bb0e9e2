"""`sweeper agent start`: starts a coding agent's program in a sandbox, with sweeper's tools, a
budget and the skills."""
