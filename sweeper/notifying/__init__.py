"""Sends what people are to be told: by a command, a webhook, Slack or e-mail."""
