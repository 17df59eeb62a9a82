"""What the machine has: threads, memory, devices."""
