"""Attention over the paged K/V store: one call, whose kernel is chosen once, at start."""
