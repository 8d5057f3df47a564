"""Trimming of the embedded log: old records are deleted from its file, from the first one on.

Pages that this frees are used again by the next appends, so the file stops growing; it does not become smaller.
"""

import sqlite3

from services.runtime.log.port import Partition, TrimmedError, trimmed

_STEP_RECORDS = 500
_STEP_BYTES = 256 * 1024


def stored_begins(connection: sqlite3.Connection) -> dict[Partition, int]:
    """Return the first offset of each partition that was trimmed; a file of an earlier version has none."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'begins'").fetchone():
        return {}
    rows = connection.execute("SELECT topic, partition, begin FROM begins")
    return {Partition(topic, number): begin for topic, number, begin in rows}


def check_begin(connection: sqlite3.Connection, partition: Partition, start: int) -> None:
    """Check that the records from `start` on were not trimmed. TrimmedError: some were."""
    begin = stored_begins(connection).get(partition, 0)
    if start < begin:
        raise TrimmedError(trimmed(partition, start, begin))


def trim_step(connection: sqlite3.Connection, partition: Partition, before: int) -> tuple[int, int]:
    """Delete the first records before an offset in one transaction of bounded size.

    Return the partition's new first offset, and the bytes of the deleted records.
    """
    place = (partition.topic, partition.number)
    rows = connection.execute(
        'SELECT "offset", length(key) + length(value) FROM records WHERE topic = ? AND partition = ? AND "offset" < ?'
        ' ORDER BY "offset" LIMIT ?',
        (*place, before, _STEP_RECORDS + 1),
    ).fetchall()
    begin, size = before, 0
    for index, (offset, length) in enumerate(rows):
        if index == _STEP_RECORDS or (size and size + length > _STEP_BYTES):
            begin = offset
            break
        size += length
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute('DELETE FROM records WHERE topic = ? AND partition = ? AND "offset" < ?', (*place, begin))
        connection.execute(
            "INSERT INTO begins VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET begin = excluded.begin", (*place, begin)
        )
    return begin, size
