"""The result of a run: when each push was sent and when it arrived, and the CPU time of each process."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import psutil

BAD_SECOND_MS = 60


class Push(NamedTuple):
    """One push; the times are those of the system-wide monotonic clock, in s."""

    msgid: int
    sent_s: float
    arrived_s: float

    @property
    def ms(self) -> float:
        return (self.arrived_s - self.sent_s) * 1000


class Measured(NamedTuple):
    """All pushes of a run; `cpu_s` by process and thread, the kernel's time for them included."""

    pushes: Sequence[Push]
    cpu_s: Mapping[str, float]

    def row(self) -> dict[str, float]:
        times = sorted(push.ms for push in self.pushes)
        worst = [_p99_ms(second) for second in self._seconds()]
        return {
            "p50_ms": round(percentile(times, 0.5), 2),
            "p99_ms": round(percentile(times, 0.99), 2),
            "max_ms": round(times[-1], 2),
            "worst_second_p99_ms": round(max(worst), 2),
            f"seconds_over_{BAD_SECOND_MS}_ms": sum(p99 > BAD_SECOND_MS for p99 in worst),
            "pushes": len(times),
            "cpu_ms_per_push": round(sum(self.cpu_per_push_ms().values()), 3),
        }

    def cpu_per_push_ms(self) -> dict[str, float]:
        return {name: seconds / len(self.pushes) * 1000 for name, seconds in self.cpu_s.items()}

    def worst_second(self) -> Sequence[Push]:
        """Return the pushes of the second with the highest 99th percentile."""
        return max(self._seconds(), key=_p99_ms)

    def _seconds(self) -> Collection[Sequence[Push]]:
        """Return the pushes sent in each second."""
        first_s = min(push.sent_s for push in self.pushes)
        seconds: dict[int, list[Push]] = {}
        for push in self.pushes:
            seconds.setdefault(int(push.sent_s - first_s), []).append(push)
        return seconds.values()


def _p99_ms(pushes: Sequence[Push]) -> float:
    return percentile(sorted(push.ms for push in pushes), 0.99)


def percentile(times_ms: Sequence[float], part: float) -> float:
    return times_ms[min(len(times_ms) - 1, int(len(times_ms) * part))]


def cpu_times_s(process: psutil.Process, name: str) -> dict[str, float]:
    """Return the CPU time of a process and of each of its children, by name and thread.

    The process has the given name, a child the end of its command. Each has two rows: its first thread, in which the
    event loop runs, and all others together.
    """
    times = _by_thread_s(process, name)
    for child in process.children(recursive=True):
        command = " ".join(child.cmdline()[1:])[-30:]
        times |= _by_thread_s(child, f"{command} ({child.pid})")
    return times


def _by_thread_s(process: psutil.Process, name: str) -> dict[str, float]:
    times = process.cpu_times()
    first = next(thread for thread in process.threads() if thread.id == process.pid)
    event_loop = first.user_time + first.system_time
    return {f"{name}, event loop": event_loop, f"{name}, other threads": times.user + times.system - event_loop}
