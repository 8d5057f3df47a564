"""Saved audiences: kept under names in the log, replaced, removed, bounded, and in the audit."""

import pytest

from protos.registry.v1.registry_pb2 import RemoveAudienceRequest, SaveAudienceRequest
from protos.runtime.v1.log_pb2 import Origin
from services.domain.apps import audience_key
from services.domain.topics import APPS, decode
from services.errors import ConflictError, InputError, NotFoundError
from services.registry import saved_audiences
from tests.services.registry.conftest import RunningRegistry, Start, records

VIP = '{"userScope":6,"stag":[["vip"]]}'
ANNA = Origin(interface="console", actor="user/anna")


async def test_an_audience_is_saved_replaced_and_removed(start: Start) -> None:
    async with start() as registry:
        app, other = await registry.app(), await registry.app()

        def request(name: str = "a/b 体育", text: str = VIP, **fields: bool) -> SaveAudienceRequest:
            return SaveAudienceRequest(appkey=app.appkey, name=name, send_to_json=text, origin=ANNA, **fields)

        first = (await registry.stub.SaveAudience(request())).audience
        assert (first.owner, first.send_to_json, first.created_ms) == ("user/anna", VIP, registry.clock.now_ms())
        registry.clock.move(60)
        with pytest.raises(ConflictError, match="already"):
            await registry.stub.SaveAudience(request(must_be_new=True))
        second = (await registry.stub.SaveAudience(request(text='{"userScope":6,"tag":[[1]]}'))).audience
        assert (second.created_ms, second.changed_ms) == (first.created_ms, first.created_ms + 60_000)
        assert registry.apps.audiences(app.appkey) == [second]
        assert registry.apps.audiences(other.appkey) == []
        valid = registry.apps.valid(audience_key(app.appkey, "a/b 体育"))
        assert valid is not None
        assert valid.saved_audience == second
    async with start() as again:
        assert again.apps.audience(app.appkey, "a/b 体育") == second
        remove = RemoveAudienceRequest(appkey=app.appkey, name="a/b 体育", origin=ANNA)
        await again.stub.RemoveAudience(remove)
        assert again.apps.audiences(app.appkey) == []
        assert again.apps.audience(app.appkey, "a/b 体育") is None
        with pytest.raises(NotFoundError, match="no saved audience"):
            await again.stub.RemoveAudience(remove)
        changes = [decode(record) for record in await records(again.log, APPS.name)]
        noted = [
            (fact.changed.action, list(fact.changed.settings), fact.meta.origin.actor)
            for fact in changes
            if fact.HasField("changed") and fact.changed.action.startswith("audience")
        ]
        line = ["audience a/b 体育"]
        saved = ("audience saved", line, "user/anna")
        assert noted == [saved, saved, ("audience removed", line, "user/anna")]


async def test_what_cannot_be_saved_is_refused(registry: RunningRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    app = await registry.app()
    for wrong in (
        {"name": ""},
        {"name": "a\nb"},
        {"name": "x" * 65},
        {"send_to_json": "[]"},
        {"send_to_json": ""},
        {"send_to_json": '{"stag": "' + "x" * saved_audiences.MAX_BYTES + '"}'},
    ):
        name, text = wrong.get("name", "vip"), wrong.get("send_to_json", VIP)
        with pytest.raises(InputError):
            await registry.stub.SaveAudience(SaveAudienceRequest(appkey=app.appkey, name=name, send_to_json=text))
    with pytest.raises(NotFoundError):
        await registry.stub.SaveAudience(SaveAudienceRequest(appkey="1", name="vip", send_to_json=VIP))
    monkeypatch.setattr(saved_audiences, "MAX_AUDIENCES", 2)
    for name in ("a", "b", "a"):
        await registry.stub.SaveAudience(SaveAudienceRequest(appkey=app.appkey, name=name, send_to_json=VIP))
    with pytest.raises(InputError, match="2 saved audiences at most"):
        await registry.stub.SaveAudience(SaveAudienceRequest(appkey=app.appkey, name="c", send_to_json=VIP))
    assert [each.name for each in registry.apps.audiences(app.appkey)] == ["a", "b"]
