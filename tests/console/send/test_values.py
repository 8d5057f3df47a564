"""The values of a field are chosen from a list, with their devices, without losing what the form has."""

import re
from html import unescape
from typing import Any

import httpx
import pytest

from console.send.forms import lines_of_values, models, text_of, with_values
from console.send.values import AudienceValues, CountedValue, Value
from protos.registry.v1.apps_pb2 import CHANNEL_FCM, PLATFORM_IOS
from protos.registry.v1.devices_pb2 import AddStags, DeviceCommand, SetAddress
from protos.targeting.v1.targeting_pb2 import CountValuesRequest, CountValuesResponse, ValueCount
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceServicer, add_TargetingServiceServicer_to_server
from services.domain.command_writer import CommandWriter, device_command
from services.domain.topics import TOPICS
from services.errors import UnavailableError
from services.net.rpc.local import LocalServer
from services.net.rpc.server import Context
from services.replica.peers import Peers
from tests.console.conftest import ConsoleInstallation, Programs
from tests.console.conftest import text_of as words_of
from tests.console.pushes.test_pages import device
from tests.console.send.test_pages import FIELDS, reviewed, sender_of, sent
from tests.console.shell.test_calls import app_of_team

_INPUT = re.compile(r"<input ([^>]*)>")
_AREA = re.compile(r'<textarea [^>]*name="([^"]+)"[^>]*>([^<]*)</textarea>')
_ROW = re.compile(r'name="value\.([^"]*)" value="1"( checked)?>.*?<td[^>]*>([^<]*)</td>.*?<td[^>]*>([^<]*)</td>', re.S)


def fields_of(page: httpx.Response) -> dict[str, str]:
    """Return the fields with which a browser sends the form of a page, of which no button was pressed."""
    found = {name: unescape(text) for name, text in _AREA.findall(page.text)}
    for attributes in _INPUT.findall(page.text):
        given = {name: unescape(value) for name, value in re.findall(r'([\w-]+)="([^"]*)"', attributes)}
        if given.get("type") not in ("radio", "checkbox") or " checked" in attributes:
            found[given["name"]] = given.get("value", "")
    return {name: value for name, value in found.items() if name != "csrf"}


def rows(page: httpx.Response) -> list[tuple[str, bool, str, str]]:
    """Return the values of the list: text, whether it is chosen, devices, share."""
    found = _ROW.findall(page.text)
    return [(unescape(name), bool(checked), devices, share) for name, checked, devices, share in found]


async def test_string_tags_are_chosen_from_a_list_and_the_form_keeps_what_it_has(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=4)
    form = await sender.get(f"/apps/{appkey}/send")
    assert form.text.count(f'formaction="/apps/{appkey}/send/values"') == 18
    typed = {**FIELDS, "title": "Storm <1>", "content": "Stay\ninside", "stag": "old"}
    path = f"/apps/{appkey}/send/values"
    listed = await sender.post(path, **typed, values_of="stag")
    assert listed.status_code == 200
    assert rows(listed) == [("sports & <news>", False, "4", "100%")]
    assert "Choose from a list: String tags" in words_of(listed)
    hidden = fields_of(listed)
    assert {name: hidden[name] for name in typed} == typed
    searched = await sender.post(path, **{**hidden, "value.sports & <news>": "1", "values_words": "none"})
    assert rows(searched) == [("sports & <news>", True, "4", "100%")], "a chosen value stays on the list"
    assert "No device has such a value now." in words_of(searched)
    chosen = await sender.post(path, **fields_of(searched), values_add="1")
    again = fields_of(chosen)
    assert (again["stag"], again["title"], again["content"]) == ("old\nsports & <news>", "Storm <1>", "Stay\ninside")
    assert not [name for name in again if name.startswith("value")]
    back = fields_of(await sender.post(path, **fields_of(searched), values_back="1"))
    assert (back["stag"], back["content"]) == ("old", "Stay\ninside")
    assert "4 devices would get it now" in words_of((await reviewed(sender, appkey, **again))[0])
    assert await sent(console) == []


async def test_attributes_have_lists_too(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    path = f"/apps/{appkey}/send/values"
    for name in ("locate", "locate_not"):
        page = await sender.post(path, **FIELDS, values_of=name)
        assert rows(page) == [("上海市", False, "1", "100%")]
        chosen = await sender.post(path, **{**fields_of(page), "value.上海市": "1"}, values_add="1")
        assert fields_of(chosen)[name] == "上海市"
        assert re.search(r"<details open>\s*<summary>Attributes", chosen.text)
    for name in ("operator", "channel", "phone", "osversion", "appversion", "model", "model_not"):
        page = await sender.post(path, **FIELDS, values_of=name)
        assert (page.status_code, "No device has such a value now." in words_of(page)) == (200, True), name


async def test_a_field_without_a_list_is_refused_and_an_absent_role_keeps_the_form(
    console: ConsoleInstallation,
) -> None:
    appkey, sender = await sender_of(console, devices=1)
    path = f"/apps/{appkey}/send/values"
    assert (await sender.post(path, **FIELDS, values_of="title")).status_code == 400
    stranger = await sender.post(path, **FIELDS, values_of="stag", other="1")
    assert (stranger.status_code, "Choose an app of the other platform" in words_of(stranger)) == (400, True)
    with console.servers["targeting"].away():
        absent = await sender.post(path, **FIELDS, values_of="stag", content="Stay inside")
    assert (absent.status_code, fields_of(absent)["content"]) == (400, "Stay inside")
    assert "does not answer at present" in words_of(absent)


async def test_a_push_to_both_platforms_counts_the_tags_of_both(console: ConsoleInstallation) -> None:
    team = await console.team("News", sender="sender")
    android = await console.app("News", team)
    ios = await console.app("News iOS", team, platform=PLATFORM_IOS)
    await device(console, android, "token-1", "alice")
    await device(console, ios, "ab" * 32, "alice", PLATFORM_IOS)
    sender = await console.logged_in("sender")
    both = await sender.post(f"/apps/{android}/send/values", **FIELDS, values_of="stag", other=ios)
    assert [row[2] for row in rows(both)] == ["2"]
    alone = await sender.post(f"/apps/{android}/send/values", **FIELDS, values_of="stag")
    assert [row[2] for row in rows(alone)] == ["1"]


async def test_the_form_says_what_an_audience_means_and_how_large_it_is(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=3)
    await device(console, appkey, "token-0", "user-0")
    command = DeviceCommand(appkey=appkey, token="token-0", add_stags=AddStags(stags=["vip"]))
    address = SetAddress(channel=CHANNEL_FCM, address="secret-part")
    addressed = DeviceCommand(appkey=appkey, token="token-0", set_address=address)
    writer = CommandWriter("test", console.log, console.peers, console.clock, 4)
    await writer.append_and_wait([device_command(command), device_command(addressed)])
    form = await sender.get(f"/apps/{appkey}/send")
    assert f'hx-post="/apps/{appkey}/send/size"' in form.text
    path = f"/apps/{appkey}/send/size"
    shown = words_of(await sender.post(path, **FIELDS, stag="sports & <news>, vip", not_stag="quiet"))
    expected = 'To: string tag "sports & <news>" and string tag "vip", not string tag "quiet"'
    assert expected in shown
    assert "1 device would get it now, 33.3% of the app; with an address on fcm: 1" in shown
    everyone = await sender.post(path, **{**FIELDS, "audience": "everyone"})
    assert "3 devices would get it now, 100% of the app" in words_of(everyone)
    assert "<html" not in everyone.text
    named = words_of(await sender.post(path, **{**FIELDS, "audience": "alias"}, alias="user-0"))
    assert named == "To: alias user-0 The next page says how many devices would get it."
    for fields, problem in (
        ({}, "Enter at least one tag, or an attribute of the devices."),
        ({"locate": "Mars"}, "There is no region Mars."),
    ):
        answer = await sender.post(path, **FIELDS, **fields)
        assert (answer.status_code, problem in words_of(answer)) == (200, True), words_of(answer)
    long = await sender.post(path, **FIELDS, stag="\n".join(f"tag-{n}" for n in range(900)))
    assert (long.status_code, len(words_of(long)) < 1200) == (200, True)
    with console.servers["targeting"].away():
        absent = await sender.post(path, **FIELDS, stag="vip")
    assert words_of(absent) == "How many devices would get it now is not known at present."
    assert await sent(console) == []


async def test_programs_list_values_too(console: ConsoleInstallation, programs: Programs) -> None:
    _, appkey, program = await app_of_team(console, programs, "sender")
    answer = await program.get(f"/apps/{appkey}/audience-values", field="stag", words="NEWS")
    expected = {"value": "sports & <news>", "brand": "", "devices": 2}
    assert answer.json() == {"values": [expected], "has_more": False, "devices": 2}
    assert (await program.get(f"/apps/{appkey}/audience-values", field="alias")).status_code == 400
    assert (await program.get(f"/apps/{appkey}/audience-values")).status_code == 400


def test_chosen_values_join_those_that_a_field_has() -> None:
    both = [Value("news"), Value("a, b")]
    assert with_values("news", "stag", both, together=False) == 'news\n"a, b"'
    assert with_values("", "not_stag", both, together=True) == 'news,"a, b"'
    assert with_values("x，y", "locate", [Value("y"), Value("z")], together=True) == "x,y,z"
    chosen = with_values("b: one", "model", [Value("two", "b"), Value("three, four", "c")], together=False)
    assert models(chosen, "model") == {"b": ["one", "two"], "c": ["three, four"]}


def test_a_value_with_a_comma_of_either_width_stays_one_value() -> None:
    values = [["a,b", "体育，新闻"], ['say "x", y', "plain"]]
    assert lines_of_values(text_of(values)) == values
    assert lines_of_values("体育，新闻") == [["体育", "新闻"]]


class _Shard(TargetingServiceServicer):
    """Targeting with these devices by value, for one partition."""

    def __init__(self, partition: int, counts: dict[str, int]) -> None:
        self._partition = partition
        self._counts = counts

    async def CountValues(self, request: CountValuesRequest, context: Context) -> CountValuesResponse:
        wanted = {each.value for each in request.values} or self._counts.keys()
        found = sorted(((value, n) for value, n in self._counts.items() if value in wanted), key=lambda each: -each[1])
        most = len(found) if request.values else request.limit
        return CountValuesResponse(
            values=[ValueCount(value=value, devices=n) for value, n in found[:most]],
            has_more=len(found) > most,
            devices=sum(self._counts.values()),
            partitions=[self._partition],
        )


def _asking(*shards: dict[str, int], partitions: int = 2) -> AudienceValues:
    channels: list[Any] = []
    for number, counts in enumerate(shards):
        local = LocalServer()
        add_TargetingServiceServicer_to_server(_Shard(number, counts), local)  # type: ignore[abstract, arg-type]
        channels.append(local.channel())
    return AudienceValues(Peers({"targeting": channels}, TOPICS), partitions)


async def test_the_devices_of_all_shards_are_summed_exactly() -> None:
    asking = _asking({"a": 9, "b": 5, "c": 4}, {"b": 6, "c": 3, "a": 1})
    found = await asking.listed(["1"], "stag", "", 2)
    assert found.values == [CountedValue(Value("b"), 11), CountedValue(Value("a"), 10)]
    assert (found.has_more, found.devices) == (True, 28)
    whole = await asking.listed(["1"], "stag", "", 3)
    assert ([each.devices for each in whole.values], whole.has_more) == ([11, 10, 7], False)
    assert await asking.counted(["1"], "stag", [Value("c"), Value("none")]) == [CountedValue(Value("c"), 7)]
    with pytest.raises(UnavailableError, match=r"in partitions \[2\]"):
        await _asking({"a": 1}, {"a": 1}, partitions=3).listed(["1"], "stag", "", 2)
