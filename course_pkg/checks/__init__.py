"""What students can check: one module of checks for each assignment."""
