"""How long student code is waited for: less, once something has run out of time."""

# Times, when patience is over. Right calls compute for .1 s at the most, where five are allowed.
SHORTER = 10


class Patience:
    """The time limit of each cell, or each call, of one submission.

    Honest code needs a small part of it. A loop without end needs all of it, and often so does
    everything that calls it; others wait for their grades meanwhile. Once as much time was wasted
    as one has, by the first that needs all of it or by several that fail slowly, those after it
    have a tenth. To end the process twice counts as much.

    Args:
        usual: seconds that each has.
        left: seconds that may be wasted before; by default as many as one has.
    """

    def __init__(self, usual: float, left: float | None = None):
        self.usual = usual
        self._left = usual if left is None else left

    @property
    def seconds(self) -> float:
        """The seconds that the next one has."""
        return self.shortened(self.usual)

    def shortened(self, seconds: float) -> float:
        """Give a time as it is, or a tenth of it when patience is over."""
        return seconds / SHORTER if self.is_over else seconds

    @property
    def is_over(self) -> bool:
        """Say whether as much time was wasted as one may take."""
        return self._left <= 0

    def waste(self, seconds: float) -> None:
        """Count time after which there was no result."""
        self._left -= seconds
