"""Commands: parse, call, exit code. Nothing here imports torch at module level."""
