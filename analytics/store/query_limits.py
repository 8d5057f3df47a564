"""Limits of one query, which ClickHouse enforces itself: beyond them it ends the query with an error."""

from typing import Any, NamedTuple


class QueryLimits(NamedTuple):
    """Limits of one query, None for no limit; `rows` counts those of the result."""

    seconds: float | None = None
    memory_bytes: int | None = None
    rows: int | None = None

    def settings(self) -> dict[str, Any]:
        """Return the limits as settings of ClickHouse."""
        settings = {
            "max_execution_time": self.seconds,
            "max_memory_usage": self.memory_bytes,
            "max_result_rows": self.rows,
        }
        return {name: value for name, value in settings.items() if value is not None}


NO_LIMITS = QueryLimits()
