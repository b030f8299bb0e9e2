"""The interface for coding agents: a server of the Model Context Protocol, whose tools call the
same functions as the verbs, and skills that explain research with sweeper."""
