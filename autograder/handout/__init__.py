"""What students receive of course_pkg: exercises as stubs, and wheels that hold no solutions."""
