"""The `carillon` command, armed: CARILLON_CRASH_AT=NAME kills the process at a point, NAME:3 the third time there."""

import os
import signal

from carillon.main import main
from services.runtime.process import crashpoint


def run() -> None:
    name, _, times = os.environ["CARILLON_CRASH_AT"].partition(":")
    crashpoint.arm(name, int(times or 1), lambda: os.kill(os.getpid(), signal.SIGKILL))
    main()


if __name__ == "__main__":
    run()
