"""From a submission to a verdict in the gradebook; student code stays in a sandbox."""
