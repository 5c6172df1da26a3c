"""Figures as plotly.js reads them."""
