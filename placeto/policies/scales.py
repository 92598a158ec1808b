"""The two scales on which networks read features."""

FINE = 0.003
"""A feature x is asinh(x / FINE) on the logarithmic scale, which is nearly linear below FINE."""
FINE_RANGE = 5.0
"""The logarithmic scale is divided by this number, which is roughly asinh(0.2 / FINE)."""
