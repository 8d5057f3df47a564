"""Times in requests: minutes in the service's time zone."""

from zoneinfo import ZoneInfo

import pytest

from edge.core.parsing.fields import minute_ms
from services.errors import InputError

ZONE = ZoneInfo("Asia/Shanghai")


def test_numbers_need_no_zeros_before_them() -> None:
    assert minute_ms("2026-9-3 1:05", ZONE, "t") == minute_ms("2026-09-03 01:05", ZONE, "t")
    assert minute_ms("2026-9-3 1:5", ZONE, "t") == minute_ms("2026-09-03 01:05", ZONE, "t")


@pytest.mark.parametrize(
    "text",
    ["", "26-9-3 1:05", "2026-009-3 1:05", "2026-9-3  1:05", "2026-9-3 1:05:00", "2026-9-31 1:05", "2026-9-3 24:0"],
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="t must be a time like"):
        minute_ms(text, ZONE, "t")
