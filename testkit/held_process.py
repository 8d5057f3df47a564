"""A process that holds something, prints what it got, and keeps it until it is killed or its input ends."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import PIPE, Popen

_KEEP = "\nprint(got, flush=True)\nsys.stdin.readline()\n"


class Holder:
    """`got` is what the process printed: the value of its variable of that name."""

    def __init__(self, process: "Popen[str]") -> None:
        self._process = process
        assert process.stdout is not None
        self.got = process.stdout.readline().strip()

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        self._process.kill()
        self._process.wait()


@contextmanager
def holding(code: str, *arguments: str) -> Iterator[Holder]:
    """Run the code, which sets `got`, in a process of its own."""
    command = [sys.executable, "-c", f"import sys\n{code}{_KEEP}", *arguments]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        holder = Holder(process)
        try:
            yield holder
        finally:
            holder.kill()
