"""Audiences are saved from the form, filled in again, listed and removed; programs do the same."""

from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from tests.console.conftest import ConsoleInstallation, Programs
from tests.console.conftest import text_of as words_of
from tests.console.send.test_pages import FIELDS, sender_of, sent
from tests.console.send.test_values import fields_of
from tests.console.shell.test_calls import app_of_team

VIP = {"userScope": 8, "stag": [["vip", "news"], ["a, b"]], "optfilter": {"android": {"locate": ["上海市"]}}}


async def test_an_audience_is_saved_from_the_form_and_filled_in_again(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    empty = await sender.get(f"/apps/{appkey}/audiences")
    assert "No audience is saved yet" in words_of(empty)
    assert "Fill it in" not in words_of(await sender.get(f"/apps/{appkey}/send"))
    path = f"/apps/{appkey}/send/audience"
    typed = {
        **FIELDS,
        "content": "Hi",
        "stag": 'vip, news\n"a, b"',
        "locate": "上海市",
        "audience_name": "Very <important>",
    }
    saved = await sender.post(path, **typed, audience_save="1")
    assert (saved.status_code, fields_of(saved)["content"]) == (200, "Hi"), words_of(saved)
    assert "The audience is saved." in words_of(saved)
    (audience,) = console.context.apps.audiences(appkey)
    assert (audience.name, audience.owner.startswith("user/")) == ("Very <important>", True)
    twice = await sender.post(path, **typed, audience_save="1")
    assert (twice.status_code, "already. Choose another name, or replace it." in words_of(twice)) == (400, True)
    assert fields_of(twice)["stag"] == typed["stag"]
    changed = await sender.post(path, **{**typed, "locate": ""}, audience_save="1", audience_replace="1")
    assert changed.status_code == 200
    assert "上海市" not in console.context.apps.audiences(appkey)[0].send_to_json
    other = {**FIELDS, "content": "Hello", "stag": "else", "appversion": "1.0", "saved_audience": "Very <important>"}
    taken = fields_of(await sender.post(path, **other, audience_take="1"))
    assert (taken["content"], taken["stag"], taken["appversion"]) == ("Hello", 'vip,news\n"a, b"', "")
    listed = await sender.get(f"/apps/{appkey}/audiences")
    conditions = '(string tag "vip" and string tag "news") or (string tag "a, b")'
    assert (conditions in words_of(listed), "sender" in words_of(listed)) == (True, True), words_of(listed)
    form = await sender.get(f"/apps/{appkey}/send?saved=Very+%3Cimportant%3E")
    assert (fields_of(form)["stag"], fields_of(form)["audience_replace"]) == ('vip,news\n"a, b"', "1")
    for _ in range(2):
        removed = await sender.post(f"/apps/{appkey}/audiences", remove="Very <important>")
        assert removed.headers["location"] == f"/apps/{appkey}/audiences"
    gone = await sender.post(path, **other, audience_take="1")
    assert (gone.status_code, fields_of(gone)["stag"]) == (400, "else")
    assert "The app has no saved audience Very <important>." in words_of(gone)
    assert console.context.apps.audiences(appkey) == []
    assert await sent(console) == []


async def test_only_tags_and_attributes_are_saved(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    path = f"/apps/{appkey}/send/audience"
    for fields, words in (
        (
            {"audience": "everyone", "audience_name": "all"},
            "A saved audience is made of tags or attributes of devices.",
        ),
        ({"audience_name": "none"}, "Enter at least one tag, or an attribute of the devices."),
        ({"stag": "vip", "audience_name": " "}, "Name of the audience: "),
        ({"stag": "vip", "audience_name": "x", "locate": "Mars"}, "There is no region Mars."),
    ):
        refused = await sender.post(path, **{**FIELDS, **fields}, audience_save="1")
        assert (refused.status_code, words in words_of(refused)) == (400, True), words_of(refused)
    assert (await sender.post(path, **FIELDS)).status_code == 400
    with console.servers["registry"].away():
        absent = await sender.post(path, **FIELDS, stag="vip", audience_name="vip", audience_save="1")
    assert (absent.status_code, fields_of(absent)["stag"]) == (400, "vip")
    assert console.context.apps.audiences(appkey) == []


async def test_programs_save_list_and_remove_audiences(console: ConsoleInstallation, programs: Programs) -> None:
    _, appkey, program = await app_of_team(console, programs, "sender")
    path = f"/apps/{appkey}/audiences"
    assert (await program.get(path)).json() == {"audiences": []}
    made = await program.post(path, {"name": "vip", "send_to": {**VIP, "appkey": {"android": "1"}, "unknown": 1}})
    assert (made.status_code, made.json()["send_to"]) == (200, VIP), made.text
    assert made.json()["owner"].startswith("token/")
    assert (await program.post(path, {"name": "vip", "send_to": VIP, "must_be_new": True})).status_code == 409
    for wrong in ({"userScope": 1}, {"userScope": 6}, {"userScope": 6, "stag": [["x" * 41]]}, {}):
        answer = await program.post(path, {"name": "wrong", "send_to": wrong})
        assert answer.status_code == 400, answer.text
    assert [each["name"] for each in (await program.get(path)).json()["audiences"]] == ["vip"]
    removed = [await program.http.delete(f"/console/v1{path}", params={"name": "vip"}) for _ in range(2)]
    assert [answer.status_code for answer in removed] == [200, 404]
    assert (await program.get(path)).json() == {"audiences": []}


async def test_an_audience_of_an_ios_app_has_tags_alone(console: ConsoleInstallation) -> None:
    team = await console.team("News", sender="sender")
    ios = await console.app("News iOS", team, platform=PLATFORM_IOS)
    sender = await console.logged_in("sender")
    saved = await sender.post(f"/apps/{ios}/send/audience", **FIELDS, stag="vip", audience_name="v", audience_save="1")
    assert saved.status_code == 200
    (audience,) = console.context.apps.audiences(ios)
    assert audience.send_to_json == '{"userScope":6,"stag":[["vip"]]}'
