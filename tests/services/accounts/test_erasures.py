"""Drafts and test devices after the erasure of a person, live as in a state built again from the log."""

from pathlib import Path

import pytest

from protos.accounts.v1.accounts_pb2 import TeamDevice
from protos.accounts.v1.drafts_pb2 import GetDraftsRequest
from protos.accounts.v1.service_pb2 import ListTeamsRequest, SetTestDevicesRequest
from protos.push.v1.push_pb2 import Audience, Tokens
from protos.registry.v1.devices_pb2 import Device
from services.domain.sealed_log import SealedLog
from services.domain.sealing import Sealer
from testkit.persons import applied_erasures, erasure, key_ring
from testkit.waiting import until
from tests.services.accounts.conftest import APP, OPERATOR, AccountsHarness, push_draft

CANARY = "canary-90be"
TOKEN = f"{CANARY}-token"


@pytest.fixture
def sealed(harness: AccountsHarness, tmp_path: Path) -> SealedLog:
    sealed = SealedLog(harness.log, Sealer(key_ring(tmp_path / "keys" / "persons")), seals=True)
    harness.log = sealed  # type: ignore[assignment]
    return sealed


async def test_drafts_and_test_devices_forget_a_person(harness: AccountsHarness, sealed: SealedLog) -> None:
    assert sealed.sealer is not None
    name = sealed.sealer.ring.name("token", APP, TOKEN)
    async with harness.running():
        author = await harness.user()
        team_id = await harness.team((author, "sender"))
        draft = push_draft(content=f"{CANARY}-text")
        draft.task.pushes[0].audience.CopyFrom(Audience(tokens=Tokens(tokens=[TOKEN])))
        kept = await harness.submit(author, team_id, draft)
        other = await harness.submit(author, team_id, push_draft(content="for all"))
        devices = [TeamDevice(appkey=APP, token=token, name="Phone") for token in (TOKEN, "other")]
        await harness.accounts.SetTestDevices(SetTestDevicesRequest(team_id=team_id, devices=devices, origin=OPERATOR))
        device = Device(appkey=APP, token=TOKEN, partition=1, number=2)
        await sealed.append([erasure(sealed.sealer, APP, [device], time_ms=harness.clock.now_ms())])

        async def tokens() -> list[str] | None:
            (team,) = (await harness.accounts.ListTeams(ListTeamsRequest())).teams
            found = sorted(each.token for each in team.team.test_devices)
            return found if TOKEN not in found else None

        assert await until(tokens) == ["other", name]
        asked = GetDraftsRequest(draft_ids=[kept.draft.draft_id, other.draft.draft_id])
        forgotten, left = (await harness.drafts.GetDrafts(asked)).drafts
        (push,) = forgotten.draft.task.pushes
        assert (list(push.audience.tokens.tokens), push.message.content) == ([name], "")
        assert left == other

        async def is_purged() -> bool:
            harness.clock.move(harness.settings.erasure_batch_s)
            return applied_erasures("accounts", "files") == 1

        await until(is_purged)
        state = harness.settings.state_dir("accounts")
        assert CANARY.encode() not in b"".join(path.read_bytes() for path in state.iterdir())
    assert await harness.rebuilt_digest() == harness.digest()
