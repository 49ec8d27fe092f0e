"""The kernel that student code runs in: its sandbox, its bounds, and starting it at once."""
