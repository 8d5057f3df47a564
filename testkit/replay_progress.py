"""Counts the progress of replays for tests."""


class CountedProgress:
    """A replay's progress display in tests: `ahead` is the sum of offsets announced, `passed` the sum done."""

    def __init__(self) -> None:
        self.ahead = 0
        self.passed = 0

    def begin(self, offsets: int) -> None:
        self.ahead += offsets

    def advance(self, offsets: int) -> None:
        self.passed += offsets
