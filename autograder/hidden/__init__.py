"""What only the grader runs: one module of hidden checks for each assignment."""
