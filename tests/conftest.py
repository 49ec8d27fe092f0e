"""Start the slowest tests first, so that no worker is left with one at the end."""

SLOW = (
    "test_notebooks.py",
    "test_hostile.py",
    "test_nbgrader.py",
    "test_grading.py",
    "test_batch.py",
)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in SLOW)
