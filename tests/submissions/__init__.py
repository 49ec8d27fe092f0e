"""A submission with mistakes for each assignment, and what it should get."""
