"""How the console's languages write durations."""

import pytest

from console.shell.languages import Languages

DURATIONS_S = [86_400, 129_600, 60, 1]


@pytest.mark.parametrize(
    ("tag", "written"),
    [("en", ["1 day", "36 hours", "1 minute", "1 second"]), ("zh", ["1天", "36小时", "1分钟", "1秒"])],
)
def test_a_duration_is_written_in_its_largest_whole_unit(tag: str, written: list[str]) -> None:
    language = Languages().chosen(tag, "")
    assert [language.duration(seconds) for seconds in DURATIONS_S] == written
