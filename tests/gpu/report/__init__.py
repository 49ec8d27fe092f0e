"""What a GPU shows of this course in a few minutes, in the order of its worth.

    make gpu-report MINUTES=12 RESULTS=build/gpu

Each step is a process of its own that prints rows; `__main__` bounds it, and writes report.md and
report.json after each. On a machine without a GPU every step runs on small sizes, and the report
says how long a GPU should take: by the bytes it has to move, or the operations it has to do.
"""
