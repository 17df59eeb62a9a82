"""Energy: meters behind one protocol, and what is read from them while a run goes on."""
