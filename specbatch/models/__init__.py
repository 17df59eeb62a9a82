"""Models: where they come from, how their files are read, and the decoder that runs them."""
