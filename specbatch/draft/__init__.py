"""Where candidate continuations come from: one protocol, and the drafters behind it."""
