"""specbatch: offline batch inference from Parquet, with per-row deadlines and speculative decoding."""

__version__ = "0.1.0"
