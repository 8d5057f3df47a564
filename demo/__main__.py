"""An installation with an afternoon of three teams, their devices and pushes, through the real interfaces.

    make demo
    python -m demo --devices 20000 --pushes 200 --seed 1 --directory build/demo

Starts `carillon up` on a directory of its own, on a clock that begins six days ago, and moves this clock on while teams
are made at the console, devices register and connect through the gateway, app servers send signed requests, and people
compose, approve, reject and look things up. Then it is now; the demo prints the URL and the log-ins, and goes on
serving until Ctrl-C. The next start serves the same directory again. The seed determines what happens; tokens, keys and
message ids differ. The ports are those of `carillon up`.
"""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import uvloop

from demo.fill import DemoPlan, fill, summary
from demo.service import DemoService
from services.errors import CarillonError


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, default=20_000, metavar="N", help="default: 20000")
    parser.add_argument("--pushes", type=int, default=200, metavar="N", help="default: 200")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument("--directory", type=Path, default=Path("build/demo"), metavar="DIR", help="default: build/demo")
    parser.add_argument("--anew", action="store_true", help="delete a demo that is in the directory and fill it again")
    options = parser.parse_args()
    plan = DemoPlan(options.directory, options.devices, options.pushes, options.seed, is_anew=options.anew)
    try:
        uvloop.run(_serve(plan))
    except (CarillonError, OSError) as error:
        sys.exit(f"demo: {error}")
    except asyncio.CancelledError:
        pass


async def _serve(plan: DemoPlan) -> None:
    """Fill the directory if it is not, print what to do with it, and go on until Ctrl-C or the end of the service."""
    service = DemoService(plan.directory, {})
    serving = asyncio.current_task()
    assert serving is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    try:
        async with fill(plan, service):
            print(summary(service), flush=True)
            await asyncio.to_thread(service.wait)
    finally:
        service.stop()


if __name__ == "__main__":
    main()
