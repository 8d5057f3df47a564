"""Runs pip and shows how far it is: a bar on a terminal, a line for each large package elsewhere."""

import os
import re
import selectors
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

_WIDTH = 24
_EVERY_S = 0.5
_KEPT_LINES = 30
_COLLECTING = re.compile(r"Collecting (\S+?)==(\S+)")
_DOWNLOADING = re.compile(r"\s+Downloading (\S+) \(([\d.]+) (kB|MB)\)")
_ENVIRONMENT = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_PROGRESS_BAR": "off", "PYTHONUNBUFFERED": "1"}


class PipError(Exception):
    """pip ended with an error; the text is the end of its output."""


class PipProgress:
    """Progress of the installation of `packages` packages in `venv`: half for collecting them, half for installing."""

    def __init__(self, out: TextIO, venv: Path, packages: int) -> None:
        self._out = out
        self._venv = venv
        self._packages = max(1, packages)
        self._collected = 0
        self._installing = 0
        self._label = ""
        self._is_terminal = out.isatty()
        self._began = time.time()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._is_terminal:
            self._out.write("\r\x1b[K")
            self._out.flush()

    @property
    def fraction(self) -> float:
        """The share of the installation that is done, from 0 to 1."""
        installed = min(1.0, self._installed() / self._installing) if self._installing else 0.0
        return (min(1.0, self._collected / self._packages) + installed) / 2

    def read(self, line: str) -> None:
        """Note the progress that a line printed by pip shows."""
        if found := _COLLECTING.match(line):
            self._collected += 1
            self.show(f"collecting {found[1]} {found[2]}")
        elif found := _DOWNLOADING.match(line):
            name = found[1].partition("-")[0]
            self.show(f"downloading {name} ({found[2]} {found[3]})", is_worth_a_line=found[3] == "MB")
        elif line.startswith("Installing collected packages:"):
            self._collected, self._installing = self._packages, line.count(",") + 1
            self.show(f"unpacking {self._installing} packages", is_worth_a_line=self._installing > 1)
        elif line.lstrip().startswith("Preparing editable metadata"):
            self.show("generating the code of the contracts in protos/")

    def show(self, label: str = "", *, is_worth_a_line: bool = False) -> None:
        """Draw the bar with this label, or with the last one; off a terminal print the label if it is worth a line."""
        self._label = label or self._label
        if self._is_terminal:
            done = round(self.fraction * _WIDTH)
            seconds = int(time.time() - self._began)
            bar = "#" * done + "." * (_WIDTH - done)
            text = f"[{bar}] {self.fraction:4.0%}  {seconds // 60}:{seconds % 60:02}  {self._label}"
            self._out.write(f"\r\x1b[K{text[: os.get_terminal_size(self._out.fileno()).columns - 1]}")
            self._out.flush()
        elif is_worth_a_line:
            print(f"  {label}", file=self._out, flush=True)

    def _installed(self) -> int:
        """Return how many packages pip has unpacked since the beginning."""
        folders = self._venv.glob("lib/python3*/site-packages/*.dist-info/RECORD")
        return sum(1 for record in folders if record.stat().st_mtime >= self._began)


def run_pip(command: Sequence[str], cwd: Path, progress: PipProgress) -> None:
    """Run pip and show its progress. PipError: it ended with an error."""
    lines: list[str] = []
    with subprocess.Popen(  # noqa: S603
        command,
        cwd=cwd,
        env={**os.environ, **_ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
    ) as pip:
        assert pip.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(pip.stdout, selectors.EVENT_READ)
            buffer = b""
            while True:
                if not selector.select(_EVERY_S):
                    progress.show()
                    continue
                chunk = os.read(pip.stdout.fileno(), 1 << 16)
                *complete, buffer = (buffer + chunk).split(b"\n")
                for line in complete:
                    lines.append(line.decode(errors="replace"))
                    progress.read(lines[-1])
                if not chunk:
                    break
    if pip.returncode:
        raise PipError("\n".join(lines[-_KEPT_LINES:]))
