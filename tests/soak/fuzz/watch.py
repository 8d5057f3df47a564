"""Watches the process of the fuzzed service for errors in its log, exceptions that nothing awaits, and CPU time."""

import asyncio
import contextlib
import logging
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import structlog

_TRACE_LINES = 30
_TRY_LATER = "TryLaterError: "
"""The log entry of an answer 503: analytics could not answer in time, as happens on a busy machine."""


class Watch(logging.Handler):
    """Collects log entries of level error and above, entries with a traceback, and exceptions that nothing awaited."""

    def __init__(self) -> None:
        super().__init__()
        self._entries: list[str] = []
        self._captured: list[Any] = []

    def taken(self) -> list[str]:
        """Return the errors since the last call."""
        for entry in self._captured:
            is_error = entry["log_level"] in ("error", "critical", "exception") or entry.get("exc_info")
            if is_error and not str(entry.get("error", "")).startswith(_TRY_LATER):
                self._entries.append(_text(entry))
        self._captured.clear()
        found = self._entries[:]
        self._entries.clear()
        return found

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            self._entries.append(self.format(record))

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Collect while the block runs in the event loop of the service."""
        loop, root, hook = asyncio.get_running_loop(), logging.getLogger(), sys.unraisablehook
        loop.set_exception_handler(lambda _, context: self._lost(context.get("exception"), context["message"]))
        sys.unraisablehook = lambda lost: self._lost(lost.exc_value, f"{lost.err_msg}: {lost.object!r}")
        root.addHandler(self)
        with structlog.testing.capture_logs() as captured:
            self._captured = captured
            try:
                yield
            finally:
                root.removeHandler(self)
                loop.set_exception_handler(None)
                sys.unraisablehook = hook

    def _lost(self, error: BaseException | None, message: str) -> None:
        self._entries.append("\n".join([message, *(traceback.format_exception(error) if error else ())]))


def cpu_s() -> float:
    """Return the CPU time of this process, all threads together, in seconds."""
    return time.process_time()


def _text(entry: Any) -> str:
    error = entry.pop("exc_info", None)
    if error is True or isinstance(error, tuple):
        error = None
    lines = traceback.format_exception(error) if isinstance(error, BaseException) else []
    return "\n".join([str(dict(entry)), *"".join(lines).splitlines()[-_TRACE_LINES:]])
