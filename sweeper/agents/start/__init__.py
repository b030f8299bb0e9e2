"""Starts an agent's command line in a sandbox, with sweeper's tools, a budget and the skills."""
