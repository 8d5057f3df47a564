"""Hints for operators by the code of a ClickHouse error, for the logs."""

_CREDENTIALS = "correct the user and password in CARILLON_CLICKHOUSE_URL"
_RIGHTS = "give the user of CARILLON_CLICKHOUSE_URL every right on the database"
_TABLES = "undo the change made in the database, or rebuild it with `carillon replay analytics`"
_READ_ONLY = "make ClickHouse, and the user of CARILLON_CLICKHOUSE_URL, writable again"
_DISK = "free space on ClickHouse's disk"
_MEMORY = "raise CARILLON_QUERY_MEMORY_MB, give ClickHouse more memory, or reduce its other load"
_TIME = "raise CARILLON_QUERY_SECONDS, or ask for less"
_HINTS = {
    16: _TABLES,  # NO_SUCH_COLUMN_IN_TABLE
    20: _TABLES,  # NUMBER_OF_COLUMNS_DOESNT_MATCH
    53: _TABLES,  # TYPE_MISMATCH
    60: _TABLES,  # UNKNOWN_TABLE
    70: _TABLES,  # CANNOT_CONVERT_TYPE
    81: _TABLES,  # UNKNOWN_DATABASE
    159: _TIME,  # TIMEOUT_EXCEEDED
    164: _READ_ONLY,  # READONLY
    192: _CREDENTIALS,  # UNKNOWN_USER
    193: _CREDENTIALS,  # WRONG_PASSWORD
    194: _CREDENTIALS,  # REQUIRED_PASSWORD
    241: _MEMORY,  # MEMORY_LIMIT_EXCEEDED
    242: _READ_ONLY,  # TABLE_IS_READ_ONLY
    243: _DISK,  # NOT_ENOUGH_SPACE
    497: _RIGHTS,  # ACCESS_DENIED
    516: _CREDENTIALS,  # AUTHENTICATION_FAILED
}


def error_hint(code: int | None) -> str:
    """Return what an operator can do about the error; empty if trying again may be enough."""
    return _HINTS.get(code or 0, "")
