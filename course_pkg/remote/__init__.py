"""The student's end of the wire: a server beside student code, and the messages that it answers."""
