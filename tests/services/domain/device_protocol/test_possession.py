"""Possession codes: each opens one device of one app, for minutes, and the log shows none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain.device_protocol.possession import (
    LIFETIME_S,
    opened_code,
    possession_code,
    proves_possession,
    sealed_code,
)
from services.domain.master_key import MasterKey
from services.errors import CarillonError

KEYS = MasterKey(bytes(32))
NOW_MS = 1_790_000_000_500
DEVICE = ("1000000001", "ab" * 32, 7)
CODE = possession_code(KEYS, *DEVICE, NOW_MS)


def test_a_code_proves_its_device_for_ten_minutes() -> None:
    for later_s in (0, 1, LIFETIME_S - 1, -60):
        assert proves_possession(KEYS, CODE, *DEVICE, NOW_MS + later_s * 1000), later_s
    for later_s in (LIFETIME_S, LIFETIME_S + 1, 10 * LIFETIME_S, -61):
        assert not proves_possession(KEYS, CODE, *DEVICE, NOW_MS + later_s * 1000), later_s


@pytest.mark.parametrize(
    "other", [("1000000002", "ab" * 32, 7), ("1000000001", "ac" * 32, 7), ("1000000001", "ab" * 32, 8)]
)
def test_a_code_proves_no_other_app_token_or_number(other: tuple[str, str, int]) -> None:
    assert not proves_possession(KEYS, CODE, *other, NOW_MS)
    assert not proves_possession(MasterKey(b"1" * 32), CODE, *DEVICE, NOW_MS)


def test_a_code_is_no_device_key_nor_the_reverse() -> None:
    appkey, token, number = DEVICE
    assert KEYS.device_number(appkey, token, CODE) is None
    assert not proves_possession(KEYS, KEYS.device_key(appkey, token, number), *DEVICE, NOW_MS)


@given(st.text(max_size=40) | st.text("AQgw_-=", max_size=40))
def test_any_other_text_proves_nothing(text: str) -> None:
    assert text == CODE or not proves_possession(KEYS, text, *DEVICE, NOW_MS)


def test_each_changed_character_voids_a_code() -> None:
    for place in range(len(CODE)):
        for other in "AQgw_-":
            changed = CODE[:place] + other + CODE[place + 1 :]
            assert changed == CODE or not proves_possession(KEYS, changed, *DEVICE, NOW_MS), changed


def test_a_code_is_sealed_for_the_log_of_its_app() -> None:
    sealed = sealed_code(KEYS, CODE, DEVICE[0])
    assert CODE.encode() not in sealed
    assert opened_code(KEYS, sealed, DEVICE[0]) == CODE
    with pytest.raises(CarillonError):
        opened_code(KEYS, sealed, "1000000002")
