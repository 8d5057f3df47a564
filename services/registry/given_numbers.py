"""The device numbers that a registry had given out before its state was rebuilt from a log that had gone back."""

import json
import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from protos.registry.v1.apps_pb2 import Revocations
from services.domain.revocations import RevokedKeys
from services.errors import UnavailableError
from services.process.durable import written_beside
from services.registry.store import DEVICES_FILE

GIVEN_NUMBERS_FILE = "given-numbers.json"
"""A file beside the state, and no part of it: the log does not hold these numbers."""

NextNumbers = Mapping[tuple[str, int], int]
"""The number after the last one that was given out, by appkey and partition."""


def load_given(directory: Path) -> NextNumbers:
    """Return the numbers that a rebuild has kept, none where there is no file. UnavailableError: it cannot be read."""
    try:
        rows = json.loads((directory / GIVEN_NUMBERS_FILE).read_bytes())
        return {(str(appkey), int(partition)): int(after) for appkey, partition, after in rows}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UnavailableError(f"{directory / GIVEN_NUMBERS_FILE} cannot be read: {error}") from error


def keep_given(former: Path, rebuilt: Path) -> None:
    """Write beside the rebuilt state the numbers beyond it that the former state, or its given-numbers file, gave out.

    Devices hold the keys of these numbers, so no other device may get one. UnavailableError: a state cannot be read.
    """
    before, now = {**load_given(former)}, _next_numbers(rebuilt)
    for key, after in _next_numbers(former).items():
        before[key] = max(after, before.get(key, 0))
    if kept := [[*key, after] for key, after in sorted(before.items()) if after > now.get(key, 0)]:
        with written_beside(rebuilt / GIVEN_NUMBERS_FILE, json.dumps(kept).encode()) as fresh:
            os.replace(fresh, rebuilt / GIVEN_NUMBERS_FILE)


def _next_numbers(directory: Path) -> dict[tuple[str, int], int]:
    """Return the numbers after those of all devices in a state, and after those that were revoked or reserved."""
    file = directory / DEVICES_FILE
    if not file.exists():
        return {}
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as rows:
            found = rows.execute("SELECT appkey, partition, max(number) + 1 FROM devices GROUP BY appkey, partition")
            after = {(appkey, partition): number for appkey, partition, number in found}
            for (record,) in rows.execute("SELECT record FROM revocations"):
                revocations = Revocations.FromString(record)
                key = revocations.appkey, revocations.partition
                after[key] = max(after.get(key, 0), RevokedKeys.of(revocations).end)
    except sqlite3.Error as error:
        raise UnavailableError(f"the state {file} cannot be read: {error}") from error
    return after
