"""The `carillon` command with a crash point armed.

CARILLON_CRASH_AT=NAME kills the process with SIGKILL at that point, NAME:3 the third time it is reached. Where the
point is in a child process of `carillon up`, both are killed.
"""

import os
import signal
import sys

from carillon.main import main
from services.process import crashpoint


def run() -> None:
    name, _, times = os.environ["CARILLON_CRASH_AT"].partition(":")
    crashpoint.arm(name, int(times or 1), _die)
    main()


def _die() -> None:
    if {"up-analytics", "up-console"} & set(sys.argv):
        os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    run()
