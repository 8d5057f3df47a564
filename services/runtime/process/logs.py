"""Structured logging: one JSON object a line on standard error, or readable text on a terminal."""

import logging
import sys
import time
from collections.abc import Callable

import structlog

_WARNINGS_ONLY = ("httpx", "httpcore", "h2", "hpack", "urllib3", "aiokafka")
"""Libraries whose lower-level messages contain addresses and headers, and so tokens and keys."""

_RATE_LIMITED = "aiokafka"
"""A library that logs the same message many times a second while the cluster is unavailable."""

_REPEAT_S = 10.0

logger: structlog.stdlib.BoundLogger = structlog.get_logger()


def configure(level: str) -> None:
    """Send all messages, also those of libraries, through one pipeline; `level` is a standard level name."""
    is_terminal = sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if is_terminal else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler()
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processor=renderer))
    handler.addFilter(RepeatFilter(_RATE_LIMITED, time.monotonic))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in _WARNINGS_ONLY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


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
