"""Benchmark of push channels: making messages, sending them over TLS, and the own connection beside a broadcast.

    python -m bench.channels --messages 20000 --devices 100000 --json

`making`, in CPU time of one process: Carillon's messages beside other libraries and a floor (bench/channels/making.py).
`sending`, one process on one core, to HAProxy on another: all that delivery does with a message, beside pywebpush and a
floor that writes ready-made requests (sending.py). `beside`: the time to the frame of a connected device, alone and
while a broadcast is handed over for as many devices (beside.py). Needs `apt install haproxy`.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.channels import beside, making, sending
from bench.channels.server import server

PARTS = ("making", "sending", "beside")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.channels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=5_000, help="messages of each turn or client (5000)")
    parser.add_argument("--devices", type=int, default=10_000, help="devices of the broadcast (10000)")
    parser.add_argument("--seconds", type=float, default=20, help="time for which frames are measured alone (20)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure; all")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, server(Path(made)) as to:
        parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
            "making": lambda: making.measure(given.messages),
            "sending": lambda: sending.measure(given.messages, to),
            "beside": lambda: beside.measure(given.devices, given.seconds, to, Path(made)),
        }
        found = {name: parts[name]() for name in PARTS if name in given.parts}
    if given.json:
        print(json.dumps({"messages": given.messages, "devices": given.devices, **found}))
        return
    for name, rows in found.items():
        columns = list(dict.fromkeys(column for row in rows for column in row))
        table = Table(*("" if column == "name" else column.replace("_", " ") for column in columns), title=name)
        for row in rows:
            table.add_row(*(_text(row.get(column, "")) for column in columns))
        Console().print(table)


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)


if __name__ == "__main__":
    main()
