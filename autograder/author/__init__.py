"""From a master to notebooks and fingerprints, and the scoreboard that tests the graders."""
