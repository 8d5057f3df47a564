"""A child process that holds a resource until it is killed or its standard input ends."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import PIPE, Popen

_KEEP = "\nprint(got, flush=True)\nsys.stdin.readline()\n"


class Holder:
    """A child process that holds a resource. `got`: what its code has assigned to the variable `got`."""

    def __init__(self, process: "Popen[str]") -> None:
        self._process = process
        assert process.stdout is not None
        self.got = process.stdout.readline().strip()

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        self._process.kill()
        self._process.wait()


@contextmanager
def holding(code: str, *arguments: str) -> Iterator[Holder]:
    """Run Python code that sets the variable `got` in a child process, and keep the process until the block ends."""
    command = [sys.executable, "-c", f"import sys\n{code}{_KEEP}", *arguments]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        holder = Holder(process)
        try:
            yield holder
        finally:
            holder.kill()
