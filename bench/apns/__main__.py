"""Benchmark of APNs clients: Carillon's beside aioapns, wreq and pycurl, and a floor in C (h2load).

    python -m bench.apns --pushes 20000 --json

The server is nginx with TLS and HTTP/2, on a core of its own where there are two; the client has the other. `accepted`
answers 200 to all; `dead` answers 410 with Apple's body to all. A client that is not installed is left out:
`pip install aioapns wreq pycurl`, `apt install nginx-light nghttp2`.
"""

import argparse
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.apns.client import CLIENTS, IN_FLIGHT, PAYLOAD, TOPIC, device_token
from services.push_simulator.certificates import SelfSigned

KINDS = {"accepted": "ab", "dead": "e410"}
DEADLINE_S = 60
_CORES = sorted(os.sched_getaffinity(0))
_NGINX = """
daemon off; worker_processes 1; pid {directory}/pid; error_log {directory}/errors crit;
events {{ worker_connections 64; }}
http {{
  access_log off; keepalive_requests 1000000000; http2_max_concurrent_streams 1000;
  client_body_temp_path {directory}/a; proxy_temp_path {directory}/b; fastcgi_temp_path {directory}/c;
  uwsgi_temp_path {directory}/d; scgi_temp_path {directory}/e;
  server {{
    listen 127.0.0.1:{port} ssl http2; ssl_certificate {directory}/cert.pem; ssl_certificate_key {directory}/key.pem;
    add_header apns-id $http_apns_id always;
    location /3/device/e410 {{
      default_type application/json; return 410 '{{"reason":"Unregistered","timestamp":1700000000000}}';
    }}
    location / {{ return 200; }}
  }}
}}
"""


@contextmanager
def server(directory: Path) -> Iterator[str]:
    """Run nginx as the server; yield its URL."""
    made = SelfSigned.make("127.0.0.1")
    (directory / "cert.pem").write_text(made.certificate_pem)
    (directory / "key.pem").write_text(made.key_pem)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (directory / "nginx.conf").write_text(_NGINX.format(directory=directory, port=port))
    with open(directory / "log", "w") as log:
        process = subprocess.Popen(
            ["nginx", "-p", str(directory), "-c", str(directory / "nginx.conf")],
            stderr=log,
            preexec_fn=lambda: os.sched_setaffinity(0, {_CORES[-1]}),
        )
    try:
        _wait_for(port)
        yield f"https://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int) -> None:
    until_s = time.monotonic() + 10
    while time.monotonic() < until_s:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError("nginx did not start")


def run_client(name: str, url: str, directory: Path, pushes: int, prefix: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.apns.client", name, url, str(directory / "cert.pem"), str(pushes), prefix]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {_CORES[0]}),
    )
    try:
        out, _ = process.communicate(timeout=DEADLINE_S)
        measured: dict[str, Any] = json.loads(out)
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        return {"failed": f"no result within {DEADLINE_S} s"}
    finally:
        process.kill()
        process.wait()
    return _row(pushes, measured["seconds"], measured["cpu_us"], measured["statuses"])


def run_floor(url: str, directory: Path, pushes: int, prefix: str) -> dict[str, Any]:
    """Measure h2load: one thread, one connection, the same request repeated."""
    (directory / "payload").write_bytes(PAYLOAD)
    headers = ["authorization: bearer " + "x" * 180, f"apns-topic: {TOPIC}", "apns-push-type: alert"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [
            *("h2load", "-n", str(pushes), "-c", "1", "-m", str(IN_FLIGHT), "-d", str(directory / "payload")),
            *(part for header in headers for part in ("-H", header)),
            f"{url}/3/device/{device_token(prefix, 1)}",
        ],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {_CORES[0]}),
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = re.search(r"finished in ([\d.]+)(ms|s)", done.stdout)
    assert found is not None
    codes = re.search(r"status codes: (\d+) 2xx, \d+ 3xx, (\d+) 4xx", done.stdout)
    assert codes is not None
    seconds = float(found[1]) / (1000 if found[2] == "ms" else 1)
    return _row(pushes, seconds, cpu_s / pushes * 1e6, {"2xx": int(codes[1]), "4xx": int(codes[2])})


def _row(pushes: int, seconds: float, cpu_us: float, statuses: dict[str, int]) -> dict[str, Any]:
    return {"pushes_s": round(pushes / seconds), "cpu_us": round(cpu_us, 1), "statuses": statuses}


def measure(pushes: int) -> list[dict[str, Any]]:
    rows = []
    clients = [name for name in CLIENTS if name == "carillon" or find_spec(name)]
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        with server(directory) as url:
            for kind, prefix in KINDS.items():
                if shutil.which("h2load"):
                    rows.append({"answers": kind, "client": "h2load", **run_floor(url, directory, pushes * 4, prefix)})
                rows += [
                    {"answers": kind, "client": name, **run_client(name, url, directory, pushes, prefix)}
                    for name in clients
                ]
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("answers", "client", "pushes/s", "CPU us/push", "statuses")
    for row in rows:
        outcome = row.get("failed") or str(row["statuses"])
        table.add_row(row["answers"], row["client"], str(row.get("pushes_s", "")), str(row.get("cpu_us", "")), outcome)
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pushes", type=int, default=10_000, help="for each client and kind of answer")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = measure(given.pushes)
    if given.json:
        print(json.dumps({"pushes": given.pushes, "rows": rows}))
    else:
        show(rows)


if __name__ == "__main__":
    main()
