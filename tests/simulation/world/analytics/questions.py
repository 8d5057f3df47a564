"""Questions to the real analytics store about a world that has ended, and its answers.

ClickHouse's engine has threads, and hangs in a process that was forked once it is loaded. So a program of its own
(`real_store.py`) repeats the requests that the model of the store has carried out, and answers.
"""

import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from protos.analytics.v1.analytics_pb2 import Ack, StatisticsRequest, StatisticsResponse
from testkit.repository import ROOT
from tests.simulation.world.analytics.store import Request
from tests.soak.analytics_checks import StoredPushes

_PROGRAM = "tests.simulation.world.analytics.real_store"
_ANSWERED_WITHIN_S = 300

QUESTIONS, ANSWERS = "questions.pickle", "answers.pickle"
"""Files in the program's folder."""


class Questions(NamedTuple):
    """The requests to repeat, in order, and what is asked then, at `now_ms` (milliseconds since 1970 UTC).

    `ends`: of each partition of the topic `deliveries`, the offset after its last record.
    """

    requests: Sequence[Request]
    zone: str
    now_ms: int
    statistics: Sequence[StatisticsRequest]
    appkeys: Sequence[str]
    ends: Mapping[int, int]


class Answers(NamedTuple):
    """`statistics` in the order of their questions; `acknowledgements` by appkey, in the order of their pages."""

    stored: StoredPushes
    statistics: Sequence[StatisticsResponse]
    acknowledgements: Mapping[str, Sequence[Ack]]


def ask(questions: Questions, directory: Path) -> Answers:
    """Have the program answer; `directory` is an empty folder for its store. RuntimeError: it failed, and says why."""
    (directory / QUESTIONS).write_bytes(pickle.dumps(questions))
    command = [sys.executable, "-m", _PROGRAM, str(directory)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=_ANSWERED_WITHIN_S, check=False)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stderr}")
    answers: Answers = pickle.loads((directory / ANSWERS).read_bytes())
    return answers
