"""Structured logging: one JSON object a line on standard error, or readable text on a terminal."""

import logging
import sys
import time
from collections.abc import Callable

import structlog

_TALKATIVE = ("httpx", "httpcore", "h2", "hpack", "urllib3", "aiokafka")
"""Libraries whose plain messages hold addresses and headers, and so tokens and keys: only their warnings are shown."""

_REPETITIVE = "aiokafka"
"""A library that says the same again many times a second for as long as the cluster is away."""

_QUIET_S = 10.0

logger: structlog.stdlib.BoundLogger = structlog.get_logger()


def configure(level: str) -> None:
    """Send everything, the libraries' own messages too, through one pipeline; `level` is a standard level name."""
    to_people = sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if to_people else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler()
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processor=renderer))
    handler.addFilter(RepeatFilter(_REPETITIVE, time.monotonic))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


class RepeatFilter(logging.Filter):
    """Lets the same message of a library through once in ten seconds, and says then how many were left out."""

    def __init__(self, library: str, now_s: Callable[[], float]) -> None:
        super().__init__()
        self._prefix = f"{library}."
        self._now_s = now_s
        self._said: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not f"{record.name}.".startswith(self._prefix):
            return True
        template, now_s = str(record.msg), self._now_s()
        last_s, left_out = self._said.get(template, (-_QUIET_S, 0))
        if now_s < last_s + _QUIET_S:
            self._said[template] = last_s, left_out + 1
            return False
        self._said[template] = now_s, 0
        if left_out:
            record.msg = f"{template} ({left_out} more like this were left out)"
        return True
