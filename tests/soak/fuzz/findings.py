"""Findings of the fuzzer: one file each, with what went wrong, the case, and the seed that makes it again."""

import re
from pathlib import Path

import msgspec

from tests.soak.fuzz.cases import Case, Head, Pipeline, WireFrames

_TEXT = 2000


class Finding(msgspec.Struct, frozen=True):
    """What went wrong, with the cases that caused it: one, unless only several together did.

    `text` is the beginning of what was sent, for people; `cases` is what `--replay` sends again.
    """

    problem: str
    reproduced: bool
    text: str
    cases: list[Case]


def finding(problem: str, cases: list[Case], *, reproduced: bool) -> Finding:
    payload = cases[0].payload
    if isinstance(payload, Pipeline):
        payload = payload.calls[0]
    data = payload.data if isinstance(payload, Head | WireFrames) else payload.body
    problem = problem.encode(errors="backslashreplace").decode()
    return Finding(problem, reproduced, data[:_TEXT].decode(errors="backslashreplace"), cases)


def write(directory: Path, found: Finding) -> Path:
    """Write the finding to a file of its own and return the file."""
    directory.mkdir(parents=True, exist_ok=True)
    case = found.cases[0]
    file = directory / f"{case.seed}-{case.number}.json"
    file.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    return file


def read(file: Path) -> Finding:
    """Read a finding's file. msgspec.ValidationError: it is none."""
    return msgspec.json.decode(file.read_bytes(), type=Finding)


def kind(problem: str) -> str:
    """Return a problem's text without the numbers and values that differ between findings of one cause."""
    last = problem.strip().splitlines()[-1]
    return re.sub(r"\d+|'[^']*'|\"[^\"]*\"", "…", last)[:160]
