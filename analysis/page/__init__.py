"""The report as HTML, Markdown, JSON and a notebook."""
