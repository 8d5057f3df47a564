"""A push is sent to the test devices of the team first."""

from protos.accounts.v1.accounts_pb2 import ApprovalRules
from protos.accounts.v1.service_pb2 import UpdateTeamRequest
from protos.delivery.v1.delivery_pb2 import GetAppleStateResponse
from protos.push.v1.push_pb2 import KIND_UNICAST
from protos.registry.v1.apps_pb2 import CHANNEL_APNS, CHANNEL_WEBPUSH, PLATFORM_IOS
from tests.console.conftest import OPERATOR, ConsoleInstallation, text_of
from tests.console.pushes.test_pages import audit
from tests.console.send.test_pages import reviewed, send, sender_of, sent, tasks, team_ids


async def test_a_push_goes_to_the_test_devices_alone(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=3)
    path = f"/apps/{appkey}/test-devices"
    fields = {"audience": "everyone", "content": "To all", "when": "after", "after": "5"}
    page, hidden = await reviewed(sender, appkey, **fields)
    assert "The team has no test devices of this app." in text_of(page)
    none = await sender.post(f"/apps/{appkey}/send/test", **hidden)
    assert none.status_code == 400
    unknown = await sender.post(path, device="nobody")
    assert (unknown.status_code, "no device with this alias or token" in text_of(unknown)) == (400, True)
    for device, label in (("user-1", "Ann's <phone>"), ("token-2", ""), ("user-1", "Ann's <phone>")):
        assert (await sender.post(path, device=device, label=label)).status_code == 303
    listed = text_of(await sender.get(path))
    assert ("Ann's <phone>" in listed, "user-2" in listed) == (True, True)
    page, hidden = await reviewed(sender, appkey, **fields)
    answers = [await sender.post(f"/apps/{appkey}/send/test", **hidden) for _ in range(2)]
    assert ["Sent to the test devices: Ann's <phone>, user-2." in text_of(answer) for answer in answers] == [True, True]
    (command,) = await sent(console)
    assert (command.send.kind, command.send.id_count, command.send.message.content) == (KIND_UNICAST, 2, "To all")
    assert (await send(sender, appkey, hidden, typed="3")).status_code == 303
    assert len([command for command in await tasks(console) if not command.create.at_once]) == 1
    assert (await sender.post(path, remove="token-1")).status_code == 303
    assert "Ann's" not in text_of(await sender.get(path))


async def test_a_push_to_test_devices_is_no_way_around_an_approval(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    (team_id,) = await team_ids(console, "News")
    rules = ApprovalRules(above_devices=0)
    await console.accounts.UpdateTeam(UpdateTeamRequest(team_id=team_id, rules=rules, origin=OPERATOR))
    await sender.post(f"/apps/{appkey}/test-devices", device="token-0")
    _, hidden = await reviewed(sender, appkey, stag="sports & <news>", content="x")
    refused = await sender.post(f"/apps/{appkey}/send/test", **hidden)
    assert (refused.status_code, "wants an approval even" in text_of(refused)) == (400, True)
    assert await sent(console) == []


async def test_an_app_of_no_team_has_no_test_devices(console: ConsoleInstallation) -> None:
    await console.user("root", administrator=True)
    appkey, root = await console.app(), await console.logged_in("root")
    page = await root.get(f"/apps/{appkey}/test-devices")
    assert (page.status_code, "belongs to no team" in text_of(page)) == (200, True)


async def test_the_partner_stays_chosen_after_a_refusal_and_in_a_copy(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    team_id = next(iter(await team_ids(console, "News")))
    ios = await console.app("News iOS", team_id, PLATFORM_IOS)
    console.delivery.apple[""] = GetAppleStateResponse(simulators=[CHANNEL_APNS, CHANNEL_WEBPUSH])
    page, hidden = await reviewed(sender, appkey, stag="a", content="On both", other=ios)
    assert "A simulator answers in the place of Apple's push service" in text_of(page), "for the partner"
    assert text_of(page).count("A simulator answers") == 1
    await sender.post(f"/apps/{appkey}/test-devices", device="token-0")
    console.analytics.pushes[7] = audit(appkey, msgid=7)
    console.analytics.pushes[7].request_json = hidden["body"]
    copy = await sender.get(f"/apps/{appkey}/send?copy=7")
    with console.servers["targeting"].away():
        refused = await send(sender, appkey, hidden)
        tested = await sender.post(f"/apps/{appkey}/send/test", **hidden)
    for form in (copy, refused, tested):
        assert f'<option value="{ios}" selected>' in form.text
