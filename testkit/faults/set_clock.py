"""A process whose wall clock can be set while it runs."""

from pathlib import Path

_SITE = """\
import time

_real_ns = time.time_ns
_read_at = 0
_ahead_ns = 0


def _time_ns():
    global _read_at, _ahead_ns
    now_ns = _real_ns()
    if now_ns - _read_at > 100_000_000:
        _read_at = now_ns
        with open({file!r}) as file:
            _ahead_ns = int(file.read()) * 1_000_000_000
    return now_ns + _ahead_ns


time.time_ns = _time_ns
"""


class SettableClock:
    """The clock that a Python process reads with `time.time_ns`, as the service does; all other time is the system's.

    `time.time` is the system's too: gRPC makes deadlines with it, which its core compares with the system's clock.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = directory / "ahead_s"
        directory.mkdir(parents=True)
        (directory / "sitecustomize.py").write_text(_SITE.format(file=str(self._file)))
        self.set(0)

    @property
    def python_path(self) -> str:
        """The folder that has to be in PYTHONPATH when the process starts."""
        return str(self._directory)

    def set(self, ahead_s: int) -> None:
        """Set the clock ahead of the system's by these seconds; the process notices within a tenth of a second."""
        partial = self._directory / "new"
        partial.write_text(str(ahead_s))
        partial.rename(self._file)
