"""Tables in and out: streamed Parquet input, atomic output parts, resume, lock."""
