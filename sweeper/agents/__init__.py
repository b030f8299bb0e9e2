"""The interface for coding agents: a server of the Model Context Protocol over the functions that
the verbs call, and a skill that explains research with sweeper."""
