"""The test devices of a team, which senders name."""

import pytest

from protos.accounts.v1.accounts_pb2 import TeamDevice
from protos.accounts.v1.service_pb2 import SetTestDevicesRequest
from services.accounts.decide_teams import MAX_TEST_DEVICES
from services.errors import CarillonError, ConflictError
from tests.services.accounts.conftest import APP, OTHER_APP, AccountsHarness, origin_of


def device_of(team_id: str, token: str, name: str, appkey: str = APP) -> SetTestDevicesRequest:
    return SetTestDevicesRequest(team_id=team_id, devices=[TeamDevice(appkey=appkey, token=token, name=name)])


async def test_senders_name_test_devices_of_the_teams_apps(harness: AccountsHarness) -> None:
    async with harness.running():
        sender = await harness.user("sender")
        team_id = await harness.team((sender, "sender"))

        async def set_device(token: str, name: str, appkey: str = APP) -> list[TeamDevice]:
            request = device_of(team_id, token, name, appkey)
            request.origin.CopyFrom(origin_of(sender))
            return list((await harness.accounts.SetTestDevices(request)).team.team.test_devices)

        first = await set_device("t1", "Ann's phone")
        assert first == await set_device("t1", "Ann's phone") == [device_of(team_id, "t1", "Ann's phone").devices[0]]
        assert [device.name for device in await set_device("t1", "Bob's phone")] == ["Bob's phone"]
        for token, name, appkey, words in (
            ("t2", "x", OTHER_APP, "does not belong to the team"),
            ("", "x", APP, "token must have"),
            ("t2", "x" * 1000, APP, "name"),
        ):
            with pytest.raises(CarillonError, match=words):
                await set_device(token, name, appkey)
        for number in range(2, MAX_TEST_DEVICES + 1):
            await set_device(f"t{number}", "another")
        with pytest.raises(ConflictError, match="at most 20 test devices"):
            await set_device("one too many", "x")
        assert len(await set_device("t1", "")) == MAX_TEST_DEVICES - 1
        actions = [fact.team.action for fact in await harness.facts("accounts", "team")]
        assert actions[-1] == "test device removed"
        assert actions.count("test device set") == MAX_TEST_DEVICES + 1


async def test_several_test_devices_are_set_by_one_fact_or_none(harness: AccountsHarness) -> None:
    async with harness.running():
        sender = await harness.user("sender")
        team_id = await harness.team((sender, "sender"))

        async def set_devices(*names: str, token: str = "t") -> list[str]:
            devices = [TeamDevice(appkey=APP, token=f"{token}{n}", name=name) for n, name in enumerate(names)]
            request = SetTestDevicesRequest(team_id=team_id, devices=devices, origin=origin_of(sender))
            answer = await harness.accounts.SetTestDevices(request)
            return [device.name for device in answer.team.team.test_devices]

        before = len(await harness.facts("accounts", "team"))
        assert await set_devices("Ann's phone", "Ann's tablet") == ["Ann's phone", "Ann's tablet"]
        with pytest.raises(ConflictError):
            await set_devices(*["x"] * MAX_TEST_DEVICES, token="u")
        with pytest.raises(CarillonError):
            await set_devices("Bob's phone", "x" * 1000, token="u")
        assert await set_devices("", "") == []
        settings = [list(fact.team.settings) for fact in (await harness.facts("accounts", "team"))[before:]]
        assert settings == [[f"{APP} t0 Ann's phone", f"{APP} t1 Ann's tablet"], [f"{APP} t0", f"{APP} t1"]]
