"""Calls about addresses on channels."""

from tests.console.conftest import START_MS, ConsoleInstallation, Programs
from tests.console.devices.test_pages import SHOWN, set_addresses


async def test_programs_list_addresses_page_by_page(console: ConsoleInstallation, programs: Programs) -> None:
    team_id = await console.team("News")
    appkey = await console.app(team_id=team_id)
    await set_addresses(console, appkey, dead=3)
    program = await programs.program(team_id, "viewer")
    living = (await program.get(f"/apps/{appkey}/addresses")).json()
    assert living["next"] == ""
    (one,) = living["addresses"]
    assert one == {
        "token": "token-0",
        "channel": "webpush",
        "fingerprint": SHOWN,
        "since_ms": one["since_ms"],
        "dead_ms": None,
        "dead_reason": "",
    }
    assert one["since_ms"] > START_MS
    first = (await program.get(f"/apps/{appkey}/addresses", dead="true", limit=2)).json()
    second = (await program.get(f"/apps/{appkey}/addresses", dead="true", limit=2, cursor=first["next"])).json()
    listed = [*first["addresses"], *second["addresses"]]
    assert [each["token"] for each in listed] == ["token-3", "token-2", "token-1"]
    assert (listed[0]["dead_reason"], second["next"]) == ("UNREGISTERED <3>", "")
    assert not (await program.get(f"/apps/{appkey}/addresses", dead="true", channel="webpush")).json()["addresses"]
    wrong = await program.get(f"/apps/{appkey}/addresses", cursor="x")
    assert (wrong.status_code, "cursor" in wrong.json()["detail"]) == (400, True)
    (known,) = (await program.get(f"/apps/{appkey}/devices", name="token-1")).json()["devices"]
    assert (known["addresses"], known["addresses_lost"][0]["dead_reason"]) == ([], "UNREGISTERED <1>")
