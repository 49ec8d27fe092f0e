"""Programs of calls, on an object and on an oracle beside it."""
