"""Structured logging, one JSON object a line or readable text, and text that cannot control a terminal."""

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import structlog

# Text for terminals: what devices and senders wrote must neither control a terminal nor mislead its reader.

_JOINERS = "\u200c\u200d"
"""Characters of Persian words and of emoji that `str.isprintable` takes for control characters."""


def printable(text: str) -> str:
    """Return the text as one line in which each control character is its JSON escape, such as `\\u001b`.

    Letters, marks, numbers, punctuation, symbols, the space and joiners stay; every other character is escaped: those
    of terminal escape sequences, line ends, and characters that change the direction of text. A line of JSON keeps its
    meaning.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in _JOINERS else json.dumps(sign)[1:-1] for sign in text)


_WARNINGS_ONLY = ("httpx", "httpcore", "h2", "hpack", "urllib3", "aiokafka")
"""Libraries whose lower-level messages contain addresses and headers, and so tokens and keys."""

_RATE_LIMITED = "aiokafka"
"""A library that logs the same message many times a second while the cluster is unavailable."""

_REPEAT_S = 10.0

logger: structlog.stdlib.BoundLogger = structlog.get_logger()


def configure(level: str, *, text_on_terminal: bool = True) -> None:
    """Send all messages, also those of libraries, warnings and uncaught errors, through one pipeline.

    `level` is a standard level name. Lines are JSON, except on a terminal where `text_on_terminal` is set. To be called
    before gRPC is imported, whose core otherwise writes lines of its own about errors that it also raises.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    is_text = text_on_terminal and sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderers: list[structlog.typing.Processor] = (
        [_show_controls, structlog.dev.ConsoleRenderer()]
        if is_text
        else [structlog.processors.JSONRenderer(ensure_ascii=False), _show_controls_of_line]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    of_libraries = [*shared, structlog.stdlib.add_logger_name]
    handler = _Handler()
    to_lines = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=of_libraries, processors=to_lines))
    handler.addFilter(RepeatFilter(_RATE_LIMITED, time.monotonic))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in _WARNINGS_ONLY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    _log_warnings_and_uncaught_errors()


def _show_controls(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape the control characters of an event's texts; a traceback keeps its line ends."""
    texts = {name: printable(value) for name, value in event.items() if isinstance(value, str)}
    if "exception" in texts:
        texts["exception"] = "\n".join(map(printable, event["exception"].split("\n")))
    return {**event, **texts}


def _show_controls_of_line(_: object, __: str, line: Any) -> str:
    """Escape the control characters that JSON allows in its texts."""
    return printable(line)


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes lines to standard error. A message that cannot be formatted is logged unformatted."""

    def handleError(self, record: logging.LogRecord) -> None:
        unformatted = logging.makeLogRecord({"name": record.name, "levelname": "ERROR", "levelno": logging.ERROR})
        unformatted.msg, unformatted.args = "a message cannot be formatted: %r", (record.msg,)
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(f"{self.format(unformatted)}\n")
            self.flush()


def _log_warnings_and_uncaught_errors() -> None:
    """Log what Python would print: warnings, and errors that nothing catches, in threads and finalizers too."""
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread
    sys.unraisablehook = _log_unraisable


def _log_uncaught(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logger.critical("an uncaught error ends the process", exc_info=(kind, error, at))


def _log_uncaught_in_thread(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is not None and not issubclass(failed.exc_type, SystemExit):
        thread = failed.thread.name if failed.thread else "unknown"
        error = (failed.exc_type, failed.exc_value, failed.exc_traceback)
        logger.error("an uncaught error ends a thread", thread=thread, exc_info=error)


def _log_unraisable(failed: "sys.UnraisableHookArgs") -> None:
    if failed.exc_value is not None:
        error = (failed.exc_type, failed.exc_value, failed.exc_traceback)
        logger.error("an error in a callback or a finalizer was ignored", where=repr(failed.object), exc_info=error)


class RepeatFilter(logging.Filter):
    """Passes the same message of a library once in ten seconds, with the number of messages dropped since."""

    def __init__(self, library: str, now_s: Callable[[], float]) -> None:
        super().__init__()
        self._prefix = f"{library}."
        self._now_s = now_s
        self._last: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not f"{record.name}.".startswith(self._prefix):
            return True
        template, now_s = str(record.msg), self._now_s()
        last_s, dropped = self._last.get(template, (-_REPEAT_S, 0))
        if now_s < last_s + _REPEAT_S:
            self._last[template] = last_s, dropped + 1
            return False
        self._last[template] = now_s, 0
        if dropped:
            record.msg = f"{template} ({dropped} more like this were left out)"
        return True
