"""Policies side by side on one workload: the same rows, the same loaded model, one process, in turns."""
