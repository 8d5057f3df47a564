"""One service account for all tests, because a key takes a while to make."""

import pytest

from services.domain.channel_credentials.harmony import HarmonyAccount
from testkit.delivery.harmony import new_account


@pytest.fixture(scope="session")
def account() -> HarmonyAccount:
    return new_account()
