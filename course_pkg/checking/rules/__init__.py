"""What a solution may not use, found in its text and when it runs."""
