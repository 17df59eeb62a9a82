"""Training an EAGLE-3.1 head: data the target writes itself, the trainer, its evaluation."""
