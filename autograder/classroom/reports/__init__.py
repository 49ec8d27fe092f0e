"""What TAs learn about a class and students about their work: made from grades, never grading."""
