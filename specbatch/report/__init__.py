"""Numbers and tables about a finished run."""
