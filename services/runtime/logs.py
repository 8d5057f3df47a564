"""Structured logging: one JSON object a line on standard error, or readable text on a terminal."""

import logging
import sys

import structlog

_TALKATIVE = ("httpx", "httpcore", "h2", "hpack", "urllib3", "aiokafka")
"""Libraries whose plain messages hold addresses and headers, and so tokens and keys: only their warnings are shown."""

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
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
