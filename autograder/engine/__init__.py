"""Grading that can be trusted: student code runs in a sandbox, verdicts are computed outside."""
