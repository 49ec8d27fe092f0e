"""What instructors have: the builder, hidden checks, known mistakes, grading and reports."""
