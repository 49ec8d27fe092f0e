"""Submissions that attack or break grading, each with the scores that it should get."""
