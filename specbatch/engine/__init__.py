"""The engine: one rule instead of phases, computed step by step."""
