"""Figures as plain dicts for plotly, and as PNGs."""
