"""The folder of a sweep and the documents in it: plan, events, states, requests, marks, locks."""
