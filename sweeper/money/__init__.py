"""Prices, estimates, forecasts, costs and bills of runs."""
