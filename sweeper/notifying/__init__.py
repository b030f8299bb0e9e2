"""Sends notifications by a command, a webhook, Slack or e-mail."""
