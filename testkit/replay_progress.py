"""The progress of a replay, counted for tests."""


class CountedProgress:
    """Sums the offsets that replays announce, and those that they pass."""

    def __init__(self) -> None:
        self.ahead = 0
        self.passed = 0

    def begin(self, offsets: int) -> None:
        self.ahead += offsets

    def advance(self, offsets: int) -> None:
        self.passed += offsets
