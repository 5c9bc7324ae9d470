"""Shared memory that this process owns, and how a location names a place in it."""

from __future__ import annotations

from rust_ort._native import Segment as Segment

LOCATION_BITS = 40
OFFSET_MASK = (1 << LOCATION_BITS) - 1
