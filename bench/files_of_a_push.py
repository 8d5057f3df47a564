"""Counts the files of this repository that one push passes, from the app server's request to the recorded outcome.

    python -m bench.files_of_a_push [--pushes 3]

Starts `carillon up`, connects a device, sends it pushes one after the other, and notes every file of which a function
is called in the process of `up` until the outcomes are in the log. Files that are also called while nothing happens
(timers, heartbeats) are left out, and so are generated ones. Analytics and the console are processes of their own and
are not counted. The number describes how much a reader must know to follow a push; it is no limit.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import track

from testkit.device import VirtualDevice
from testkit.installation.app_server import AppServer
from testkit.installation.processes import Installation
from testkit.waiting import blocking_until

ROOT = Path(__file__).resolve().parent.parent
_FILE = "BENCH_FILES"
_QUIET_S = 3.0


def trace_if_asked() -> None:
    """In a process with BENCH_FILES set: SIGUSR1 begins a trace, SIGUSR2 ends it and writes its files there."""
    if _FILE not in os.environ:
        return
    out = Path(os.environ[_FILE])
    called: set[str] = set()
    tracing = False

    def note(frame: FrameType, event: str, _: Any) -> None:
        if tracing and event == "call":
            called.add(frame.f_code.co_filename)

    def begin(*_: object) -> None:
        nonlocal tracing
        called.clear()
        tracing = True

    def end(*_: object) -> None:
        nonlocal tracing
        tracing = False
        part = out.with_suffix(".part")
        part.write_text(json.dumps(sorted(called)))
        part.rename(out)

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    threading.setprofile(note)
    sys.setprofile(note)


def _own(files: list[str]) -> set[str]:
    """Return the paths below the repository, without generated code and packages."""
    inside = {Path(file).relative_to(ROOT) for file in files if file.startswith(f"{ROOT}/")}
    return {str(path) for path in inside if path.parts[0] not in {".venv", "bench", "protos", "testkit"}}


def _taken(out: Path) -> set[str]:
    """Wait for the trace, take it, and return its files."""
    blocking_until(out.exists, 30)
    files = _own(json.loads(out.read_text()))
    out.unlink()
    return files


async def _files(installation: Installation, out: Path, pushes: int) -> tuple[set[str], set[str]]:
    """Return the files of the pushes, and those that are called while nothing happens."""
    app = installation.create_app()
    server = AppServer(f"http://127.0.0.1:{installation.env['CARILLON_V2_PORT']}")
    device = VirtualDevice(installation.gateway_url, app.appkey)
    await device.connect()
    try:
        process = installation.process_id()

        async def traced(seconds: float, count: int) -> set[str]:
            os.kill(process, signal.SIGUSR1)
            for _ in range(count):
                body = {
                    "sendTo": {"appkey": {"android": app.appkey}, "userScope": 5, "token": {"android": device.token}},
                    "msgStyle": {"basic": {"content": "a push", "is_notif": 1}, "android": {"title": "bench"}},
                }
                answer = await server.push(body, app.secret_key)
                assert answer["result"] == 0, answer
                await device.events.get()
            await asyncio.sleep(seconds)
            os.kill(process, signal.SIGUSR2)
            return await asyncio.to_thread(_taken, out)

        await traced(_QUIET_S, 1)  # What is done once, such as the first look-up, is not counted.
        idle = await traced(4 * _QUIET_S, 0)
        passed: set[str] = set()
        for _ in track(range(pushes), "pushes", console=Console(stderr=True)):
            passed |= await traced(_QUIET_S, 1)
        return passed, idle
    finally:
        await device.close()
        await server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pushes", type=int, default=3, help="pushes to trace, one after the other (default 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        hook = "from bench.files_of_a_push import trace_if_asked\ntrace_if_asked()\n"
        (directory / "sitecustomize.py").write_text(hook)
        out = directory / "files.json"
        with contextlib.closing(Installation(directory / "carillon", None)) as installation:
            installation.env |= {"PYTHONPATH": scratch, _FILE: str(out), "CARILLON_LOG_LEVEL": "WARNING"}
            installation.start()
            passed, idle = asyncio.run(_files(installation, out, options.pushes))
    files = sorted(passed - idle)
    if options.json:
        print(json.dumps({"files": files, "also_idle": sorted(idle)}))
        return
    console = Console()
    for file in files:
        console.print(f"  {file}", highlight=False)
    console.print(f"{len(files)} files, and {len(idle & passed)} that are called while nothing happens as well")


if __name__ == "__main__":
    main()
