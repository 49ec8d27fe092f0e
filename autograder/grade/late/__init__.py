"""Due dates, late penalties, extensions and slip days: what the teacher's policy.toml says."""
