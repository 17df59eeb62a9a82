"""Reports of runs: finished ones, unfinished ones, and what is left of damaged ones."""
