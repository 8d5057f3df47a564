"""The capacity plan of docs/capacity.md, computed from measured constants.

    python -m bench.capacity                      prints the tables
    python -m bench.capacity --devices 3000000    for other numbers of devices
    python -m bench.capacity --write              puts the tables into docs/capacity.md

A test compares the tables of the page with computed ones.
"""

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

from bench.capacity import measured as m
from bench.capacity.plan import Load, Plan, most_pushes_per_s, per_thousand_pushes, plan

PAGE = Path(__file__).parents[2] / "docs/capacity.md"
SIZES = (1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
_BLOCK = re.compile(r"(<!-- python -m bench.capacity --write -->\n).*?(<!-- end -->)", re.DOTALL)

_ROWS = {
    "pushes_per_s": "pushes to single devices a second, at the peak",
    "edge_workers": "edge: workers, a core each",
    "gateways": "gateway: processes, a core each",
    "gateway_memory_gb": "gateway: memory in all, GB",
    "delivery": "delivery: instances, a core each",
    "delivery_memory_gb": "delivery: memory for undelivered messages, GB",
    "targeting_memory_gb": "targeting: memory in all, GB",
    "registry_disk_gb": "registry: disk in all, GB",
    "registry_rebuild_core_h": "registry: a rebuild, hours of a core, divided by its instances",
    "analytics": "analytics: instances",
    "log_gb_a_day": "event log: GB a day, one replica",
    "log_mb_per_s": "event log: MB a second at the peak, one replica",
    "log_disk_tb": "event log: disks of Kafka for 35 days and three replicas, TB",
    "partitions": "`CARILLON_PARTITIONS`, if one app has all devices",
    "registration_days": "to register all devices at the measured rate of one `carillon up`, days",
}


def number(value: float) -> str:
    """Return the value with two significant digits, or without a fraction from ten on."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def tables(sizes: Sequence[int]) -> str:
    load = Load()
    plans: list[Plan] = [plan(devices, load) for devices in sizes]
    lines = ["| devices | " + " | ".join(f"{one.devices:,}" for one in plans) + " |", "|---|" + "---|" * len(plans)]
    for name, title in _ROWS.items():
        lines.append(f"| {title} | " + " | ".join(number(getattr(one, name)) for one in plans) + " |")
    lines += ["", "| a thousand pushes a second to one device each | |", "|---|---|"]
    lines += [f"| {title} | {number(value)} |" for title, value in per_thousand_pushes(load).items()]
    planned, most = most_pushes_per_s(load)
    lines += ["", "| bound | value |", "|---|---|"]
    of_partition = "pushes a second that the one partition of `push-commands` takes: planned, most"
    lines += [
        f"| {of_partition} | {planned:,.0f}; {most:,.0f} |",
        f"| devices of one app in one partition | {m.MAX_AUDIENCE_DEVICES:,} |",
        f"| devices of one app with 32 partitions; with {m.MAX_PARTITIONS} | {32 * m.MAX_AUDIENCE_DEVICES / 1e6:,.0f}"
        f" million; {m.MAX_PARTITIONS * m.MAX_AUDIENCE_DEVICES / 1e9:.1f} billion |",
    ]
    return "\n".join(lines) + "\n"


def written(page: str, text: str) -> str:
    """Return the text of the page with these tables in place of its own."""
    return _BLOCK.sub(lambda match: f"{match[1]}\n{text}\n{match[2]}", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=SIZES)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/capacity.md")
    parser.add_argument("--json", action="store_true", help="print one JSON object, for the test of the page")
    options = parser.parse_args()
    if options.json:
        result = {
            "tables": tables(options.devices),
            "plans": [plan(devices, Load())._asdict() for devices in options.devices],
            "measured": [one._asdict() for one in m.ALL],
            "devices_of_a_partition": m.MAX_AUDIENCE_DEVICES,
        }
        print(json.dumps(result))
    elif options.write:
        PAGE.write_text(written(PAGE.read_text(), tables(SIZES)))
    else:
        print(tables(options.devices))


if __name__ == "__main__":
    main()
