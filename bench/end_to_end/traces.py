"""Benchmark of traces: the CPU time of `carillon up` for a push without and with traces, in pairs of runs.

    python -m bench.end_to_end.traces --pairs 6 --ratio 0.1 --rate 200 --seconds 10

The first table has the CPU time of the traces of a push alone, without the service, their export included; its floor is
the same calls with traces off. In the second table each run has an installation of its own, and the collector runs in
the process of the benchmark, whose CPU time does not count. Its last line has the medians.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.end_to_end.__main__ import carillon, print_table
from services.process import push_traces
from testkit.installation.otlp_receiver import OtlpReceiver, otlp_receiver

TRACED_ALONE = 3000
COLLECTOR = """
import sys
from testkit.installation.otlp_receiver import otlp_receiver
with otlp_receiver() as receiver:
    print(receiver.url, flush=True)
    sys.stdin.read()
"""


def trace_one(msgid: int) -> None:
    """Make the calls that the processes make on the way of one push."""
    request = push_traces.begin_request()
    trace = push_traces.trace_of(request)
    with push_traces.appending(trace, msgid):
        pass
    push_traces.end_request(request, "POST /v2/push", {"carillon.interface": "v2", "carillon.result": 0})
    push_traces.read(trace, msgid)
    push_traces.started(msgid)
    push_traces.handed(push_traces.sent_trace(msgid), msgid, 1)
    push_traces.first_written([msgid])
    push_traces.acknowledged([msgid])


async def alone_us(url: str | None, ratio: float) -> float:
    """Return the CPU time of the traces of one push in microseconds, their export included."""
    exporter = push_traces.otlp_exporter(url)
    before_s = time.process_time()
    async with push_traces.exporting(exporter, ratio):
        for msgid in range(TRACED_ALONE):
            trace_one(msgid)
            if msgid % 50 == 0:
                await asyncio.sleep(0.05)
    return 1e6 * (time.process_time() - before_s) / TRACED_ALONE


def traces_alone(ratio: float) -> dict[str, dict[str, float]]:
    """Return the CPU time of the traces of one push, by the share of the pushes that are traced."""
    collector = subprocess.Popen(
        [sys.executable, "-c", COLLECTOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert collector.stdout is not None
        url = collector.stdout.readline().strip()
        cases = {"off": (None, 0.0), "all": (url, 1.0), f"{ratio:.0%}": (url, ratio), "1%": (url, 0.01)}
        return {name: {"us_per_push": round(asyncio.run(alone_us(*case)), 1)} for name, case in cases.items()}
    finally:
        collector.kill()
        collector.wait()


def cpu_ms(options: argparse.Namespace, receiver: OtlpReceiver, ratio: float) -> float:
    """Return the CPU time of one push in ms, at this ratio; 0: without traces."""
    settings = {"CARILLON_TRACES_URL": receiver.url, "CARILLON_TRACES_RATIO": str(ratio)} if ratio else {}
    with tempfile.TemporaryDirectory() as data:
        measured, _ = carillon(options, Path(data), settings)
    return sum(ms for name, ms in measured.cpu_per_push_ms().items() if name.startswith("carillon up"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--ratio", type=float, default=0.1, help="CARILLON_TRACES_RATIO")
    parser.add_argument("--rate", type=float, default=200, help="pushes a second")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--devices", type=int, default=100)
    options = parser.parse_args()
    options.no_stages = True
    print_table("CPU time of the traces of a push alone", traces_alone(options.ratio))
    rows: dict[str, dict[str, float]] = {}
    percents: list[float] = []
    with otlp_receiver() as receiver:
        for number in range(1, options.pairs + 1):
            turns = [0.0, options.ratio] if number % 2 else [options.ratio, 0.0]
            found = {ratio: cpu_ms(options, receiver, ratio) for ratio in turns}
            off, on = found[0.0], found[options.ratio]
            percents.append(100 * (on / off - 1))
            rows[f"pair {number}"] = {"off ms": round(off, 3), "on ms": round(on, 3), "%": round(percents[-1], 1)}
    medians = {name: round(median(row[name] for row in rows.values()), 3) for name in ("off ms", "on ms")}
    rows["median"] = {**medians, "%": round(median(percents), 1)}
    print_table(f"CPU time of a push, {options.ratio:.0%} traced, {len(receiver.spans)} spans", rows)


if __name__ == "__main__":
    main()
