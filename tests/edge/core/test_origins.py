"""The client's address that the audit shows: the peer's, unless a trusted proxy reports another."""

from pathlib import Path

import pytest

from services.domain.topics import PUSH_COMMANDS, decode
from services.log.port import Partition
from testkit.edge.role import BACKENDS, edge_installation
from testkit.edge.v2_bodies import broadcast
from testkit.signing import signed

FORWARDED = (["203.0.113.9"], ["198.51.100.1, 203.0.113.9"], ["198.51.100.1", "203.0.113.9"], ["no address"])


@pytest.mark.parametrize(
    ("trusted", "recorded"),
    [("", ["127.0.0.1"] * 4), ("10.0.0.0/8, 127.0.0.1", ["203.0.113.9"] * 3 + ["127.0.0.1"])],
)
async def test_a_forwarded_address_is_recorded_only_from_a_trusted_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: str, recorded: list[str]
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    async with edge_installation(tmp_path, {"registry": BACKENDS["registry"]}, trusted_proxies=trusted) as installation:
        app = await installation.app()
        body = signed(broadcast(app), installation.secrets[app.appkey])
        for values in FORWARDED:
            headers = [("X-Forwarded-For", value) for value in values]
            assert (await installation.http.post("/v2/push", content=body, headers=headers)).json()["result"] == 0
        page = await installation.log.select({Partition(PUSH_COMMANDS.name, 0): 0}, 10)
        assert [decode(record).meta.origin.address for record in page.records] == recorded
