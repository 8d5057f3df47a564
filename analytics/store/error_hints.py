"""What to do when ClickHouse refuses something: by the codes of its errors, for the logs."""

_CREDENTIALS = "correct the user and password in CARILLON_CLICKHOUSE_URL"
_RIGHTS = "give the user of CARILLON_CLICKHOUSE_URL every right on the database"
_TABLES = "undo what was changed in the database, or build it again with `carillon replay analytics`"
_READ_ONLY = "let ClickHouse, and the user of CARILLON_CLICKHOUSE_URL, write again"
_DISK = "make room on ClickHouse's disk"
_MEMORY = "give ClickHouse more memory, or less else to do"
_ADVICE = {
    16: _TABLES,  # NO_SUCH_COLUMN_IN_TABLE
    20: _TABLES,  # NUMBER_OF_COLUMNS_DOESNT_MATCH
    53: _TABLES,  # TYPE_MISMATCH
    60: _TABLES,  # UNKNOWN_TABLE
    70: _TABLES,  # CANNOT_CONVERT_TYPE
    81: _TABLES,  # UNKNOWN_DATABASE
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


def advice(code: int | None) -> str:
    """What an operator can do about it; empty where trying again may be enough."""
    return _ADVICE.get(code or 0, "")
