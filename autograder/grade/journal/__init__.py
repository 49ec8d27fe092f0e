"""Every change of a score: who, when, from, to, why; also of those that nbgrader's pages make."""
