"""Many submissions: the command, the workers, and the gradebook that they end in."""
