"""What teaching assistants do besides grading: release, report, feed back, compare, export."""
