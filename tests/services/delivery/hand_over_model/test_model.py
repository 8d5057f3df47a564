"""Messages are shown once and none is lost, whatever happens between delivery, phones and channels in any order."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner

from tests.services.delivery.hand_over_model import __main__ as program
from tests.services.delivery.hand_over_model.faults import FAULTS
from tests.services.delivery.hand_over_model.rules import BrokenRuleError
from tests.services.delivery.hand_over_model.world import run_worlds
from tests.simulation.planted.edit import planted

FEW_WORLDS = 20
"""Worlds of about 40 messages; `make hand-overs` runs as many as it is told."""

WORLDS_OF_A_FAULT = 150
FOUND_AT_ONCE = (
    "the request leaves before its claim is in the log",
    "a claimed message is sent with the device's backlog",
    "a refused repetition of an unanswered request counts as a refusal",
    "a second channel is asked while the first has not answered",
    "a phone that comes back within the grace causes a hand-over",
    "a returned message is not sent to the connected device",
    "a message whose request is on its way is recalled",
    "nothing is recalled when a device connects",
)
"""Faults that the first worlds find."""


def test_no_world_breaks_a_rule() -> None:
    assert run_worlds(range(FEW_WORLDS)) > 20 * FEW_WORLDS


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_no_world_of_many_breaks_a_rule() -> None:
    assert run_worlds(range(FEW_WORLDS, 1500)) > 40_000


FOUND_LATER = [pytest.param(name, marks=pytest.mark.long) for name in FAULTS if name not in FOUND_AT_ONCE]


@pytest.mark.parametrize("name", [*FOUND_AT_ONCE, *FOUND_LATER])
def test_the_model_finds_each_fault(name: str) -> None:
    with planted(FAULTS[name]):
        assert first_broken(range(WORLDS_OF_A_FAULT)) is not None


def test_every_fault_fits_the_code() -> None:
    assert len(FAULTS) >= 10
    for edits in FAULTS.values():
        with planted(edits):
            pass


def first_broken(seeds: Sequence[int]) -> int | None:
    """Return the first seed whose world breaks a rule."""
    for seed in seeds:
        try:
            run_worlds([seed])
        except BrokenRuleError:
            return seed
    return None


def test_a_run_without_a_terminal_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_LINE_EVERY_S", 0)
    monkeypatch.setattr(program, "ProcessPoolExecutor", ThreadPoolExecutor)
    monkeypatch.setattr(program, "run_worlds", len)
    ran = CliRunner().invoke(program.main, ["--messages", "120", "--first", "7", "--processes", "1"])
    assert ran.exit_code == 0
    assert ran.stderr.splitlines() == [
        f"{done} of 120 messages, {done} worlds from seed 7 on" for done in (50, 100, 150)
    ]
    assert ran.stdout == "150 worlds with 150 messages: none shown twice, none lost\n"
