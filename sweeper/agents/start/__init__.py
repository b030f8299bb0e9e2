"""Starts the command line of an agent in a sandbox, with sweeper's tools, a budget and the
skills."""
