"""From cells that have run to a verdict: checks, points, and mistakes that cost once."""
