"""Simulates a hang of this process without waiting."""

import pytest

from services.process import clock


class RealTime:
    """Real time as `HangWatch` measures it. `pass_ms` adds time at once, as if the process had been stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        elapsed_ns = clock._elapsed_ns
        self._passed_ms = 0
        monkeypatch.setattr(clock, "_elapsed_ns", lambda: elapsed_ns() + self._passed_ms * 1_000_000)

    def pass_ms(self, duration_ms: int) -> None:
        self._passed_ms += duration_ms
