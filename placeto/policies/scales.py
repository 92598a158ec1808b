"""The two scales on which networks read features."""

FINE = 0.003
"""Below it the logarithmic scale is linear."""
FINE_RANGE = 5.0
"""Roughly what it maps 0.2 to, before it is divided by this."""
