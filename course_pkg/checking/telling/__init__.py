"""What checks say: failures, names of mistakes, where they begin, and how far a student is."""
