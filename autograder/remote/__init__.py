"""The grader's end of the wire: stand-ins for objects of a process that runs student code."""
