"""What an engine knows of its requests and sequences."""
