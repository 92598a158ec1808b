"""Learned placers, by name."""

from __future__ import annotations

from placeto.policies.placeto import PlacetoPolicy

POLICIES = {
    "placeto": PlacetoPolicy,
}
"""Name -> policy class, called with its config."""
