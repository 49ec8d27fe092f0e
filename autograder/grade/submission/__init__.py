"""A submission: its files, its notebook in order, and what the plan of its assignment says."""
