"""The `carillon` command with a crash point armed.

CARILLON_CRASH_AT=NAME kills the process with SIGKILL at that point, NAME:3 the third time it is reached.
"""

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
