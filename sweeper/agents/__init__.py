"""The interface for coding agents: a server of the Model Context Protocol with the functions that
the verbs call, and skills that explain research with sweeper."""
