"""Compute kernels of specbatch, each beside its reference twin."""
