"""Timestamps of each push at the stages of its processing, for benchmarks. They are off by default.

`CARILLON_STAGES_DIR` names a directory, in which each process writes a file `PID.txt`: a line `STAGE KEY KEY TIME` for
each moment, with the time of the system-wide monotonic clock in ns. The key is the id of the request before `resolved`,
whose line has both keys, and from there on the first message id of the push.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TextIO

Stage = Literal[
    "read",  # the edge has read the body
    "signed",  # the sign is verified
    "resolved",  # the request is checked, its tokens and aliases are looked up
    "appended",  # the command is in the log
    "followed",  # delivery has read the command
    "started",  # the audience is in the log
    "handed",  # the gateway has the message, to write it to the socket
]
"""A stage of a push between the app server and the device; the comment says what has happened by then."""

_file: TextIO | None = None


def note(stage: Stage, key: object, request_id: str = "-") -> None:
    """Write the present time of the push at this stage, if timestamps are on."""
    if _file is not None:
        _file.write(f"{stage} {key} {request_id} {time.monotonic_ns()}\n")


@contextmanager
def noting(directory: str | None) -> Iterator[None]:
    """Write timestamps inside the block, into this process's file in the directory; None: write none."""
    global _file
    if directory is None:
        yield
        return
    Path(directory).mkdir(parents=True, exist_ok=True)
    with (Path(directory) / f"{os.getpid()}.txt").open("w", buffering=1) as _file:
        try:
            yield
        finally:
            _file = None
