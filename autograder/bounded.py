"""A bound on the memory of this process, for work that may take all that it gets."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def bounded_memory(most: int) -> Iterator[None]:
    """Let what takes more memory raise MemoryError, or torch's RuntimeError, in the block.

    Args:
        most: bytes of this process's data.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [limit for limit in (soft, hard, most) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
