"""What notebooks ask and state: predictions, claims, and whether an experiment can run."""
