"""Errors that a person can mend: in the reader's language, at the field, with its label as it stands on the page."""

import re
from collections.abc import Mapping
from html import unescape

import pytest

from console.shell.error_words import FIELDS, FormField, FormFields
from console.shell.languages import Languages
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from services.errors import CarillonError, Code, InputError, TooManyRequestsError
from tests.console.conftest import ConsoleInstallation, text_of
from tests.console.send.test_pages import reviewed, sender_of

ENGLISH, CHINESE = (Languages().chosen(tag, "") for tag in ("en", "zh"))
_LABEL = re.compile(r'<label for="f-([^"]+)">([^<]*?)\s*<')
_CLICK_PARAMS = {
    "4": ("picture-addr", "picture-hyperlink", "jump-seconds", "tip-content", "tip-url"),
    "5": ("title", "picture-addr"),
    "6": ("top-title", "information[1].title", "information[1].picture-addr", "information[1].text-abstract"),
    "7": ("url",),
}
NUMBERS = ("_s", "least", "most", "size", "count", "days", "quota", "stored")
SETTINGS = {"name": "N", "period": "3", "period_unit": "d"}


def known_fields() -> list[FormField]:
    fields = FormFields(ENGLISH.gettext, ENGLISH.ngettext)
    found = [
        fields.find(f"msgStyle.android.click_param.{name}", {"click_action": action})
        for action, names in _CLICK_PARAMS.items()
        for name in names
    ]
    return [*(field for listed in fields._by_path.values() for field in listed), *(field for field in found if field)]


async def test_labels_are_those_of_the_pages(console: ConsoleInstallation) -> None:
    team_id = await console.team("News")
    android = await console.app(team_id=team_id)
    ios = await console.app("News on iOS", team_id, PLATFORM_IOS)
    await console.user("boss", administrator=True)
    admin = await console.logged_in("boss")
    paths = [f"/apps/{appkey}/{page}" for appkey in (android, ios) for page in ("send", "settings", "test-devices")]
    paths += ["/apps/new", "/users/new", "/account", "/account/password", f"/teams/{team_id}", "/audit"]
    paths += [f"/statistics?appkey={android}&kind=broadcasts", "/account/second-factor"]
    on_pages: dict[str, set[str]] = {}
    for path in paths:
        for name, label in _LABEL.findall((await admin.get(path)).text):
            on_pages.setdefault(name, set()).add(unescape(label))
    # On the page of a one-time link, in a dialog, and as the legend of a choice.
    elsewhere = {"password", "reason", "webpush_key"}
    wrong = [field for field in known_fields() if field.label not in on_pages.get(field.name, ())]
    assert {field.name for field in wrong} == elsewhere, wrong


@pytest.mark.parametrize(
    ("error", "form", "field", "english", "chinese"),
    [
        (
            InputError(Code.OUT_OF_RANGE, at="sendTo.tag[0][1]", least=-32727, most=32727),
            {"tag": "1"},
            "tag",
            "Numeric tags: Enter a whole number from -32,727 to 32,727.",
            "数字标签：请输入 -32,727 到 32,727 之间的整数。",
        ),
        (
            InputError(Code.NEEDED, at="option.send_time_interval", by="option.timed 2"),
            {},
            "after",
            "Minutes from the moment you send: Fill in this field.",
            "从发送时起的分钟数：请填写此项。",
        ),
        (
            InputError(Code.SECONDS_OUT_OF_RANGE, at="option.period", least_s=1, most_s=604800),
            {},
            "period",
            "Keep for offline devices: Enter a time from 1 second to 7 days.",
            "为离线设备保留：请输入从1秒到7天的时长。",
        ),
        (
            InputError(Code.NOT_PRINTABLE, at="name", most=64),
            {"token_name": ""},
            "token_name",
            "Name of the program: Enter 1 to 64 characters.",
            "程序名称：请输入 1 到 64 个字符。",
        ),
        (
            TooManyRequestsError(Code.OVER_BROADCASTS, 64969, appkey="1712837607", quota=1, wait_s=64969),
            {},
            "",
            "The app's quota of 1 broadcasts and multicasts per day is used up. Try again in 18 h.",
            "该应用每天 1 次广播和组播的配额已用完。请在 18小时后重试。",
        ),
        (
            InputError(Code.EMPTY, at="sendTo.optfilter.android.model.brand[0]"),
            {},
            "model",
            "Models: Fill in this field.",
            "型号：请填写此项。",
        ),
        (
            InputError(Code.NO_SUCH_LOGIN, login="1234"),
            {},
            "who",
            "Nobody has the log-in name 1234.",
            "没有登录名为 1234 的用户。",
        ),
        (InputError("100 % new"), {}, "", "100 % new", "100 % new"),
        (InputError(Code.MISSING, at="sendTo.x 5 %"), {}, "", "SendTo.x 5 % is missing", "SendTo.x 5 % is missing"),
    ],
)
def test_an_error_is_written_in_the_readers_language(
    error: CarillonError, form: Mapping[str, str], field: str, english: str, chinese: str
) -> None:
    problems = ENGLISH.problem(error, form), CHINESE.problem(error, form)
    assert problems == (english, chinese)
    assert {problem.field for problem in problems} == {field}


@pytest.mark.parametrize("code", Code, ids=lambda code: code.name)
def test_every_code_has_words_in_every_language(code: Code) -> None:
    """`test_texts.py` compares the catalogs with the texts in the code."""
    fields = {name: 120 if name.endswith(NUMBERS) else f"<{name}>" for name in code.fields - {"at"}}
    at = {"at": "name"} if "at" in code.fields else {}
    english, chinese = (language.problem(InputError(code, **fields, **at), {}) for language in (ENGLISH, CHINESE))
    assert re.search("[\u4e00-\u9fff]", chinese)
    assert not re.search("[\u4e00-\u9fff]", english)
    assert {problem.field for problem in (english, chinese)} == {english.field}
    assert bool(english.field) == ("at" in code.fields or code in FIELDS)
    named = [set(re.findall(r"%\((\w+)\)s", language.problem.by_code[code])) for language in (ENGLISH, CHINESE)]
    assert named[0] == named[1] <= code.fields


async def test_the_field_is_marked_and_described_by_what_is_wrong(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    assert 'name="content" rows="3" required>' in (await sender.get(f"/apps/{appkey}/send")).text
    page, _ = await reviewed(sender, appkey, content="x", stag="a", qps="fast")
    (marked,) = re.findall(r'<[^>]*aria-invalid="true"[^>]*>', page.text)
    assert ('name="qps"' in marked, 'aria-describedby="e-qps h-qps"' in marked) == (True, True)
    assert '<p class="wrong" id="e-qps">Enter a whole number.</p>' in page.text
    assert "Messages a second: Enter a whole number." in text_of(page)


async def test_settings_name_the_field_in_its_unit(console: ConsoleInstallation) -> None:
    appkey = await console.app()
    await console.user("boss", administrator=True)
    admin = await console.logged_in("boss")
    refusals = {
        "Default time to live: Enter a time from 1 minute to 7 days.": {"period": "9"},
        "Default time to live: Enter a whole number.": {"period": "long"},
        "Allowed addresses: hello is no address or network.": {"allow_from": "hello"},
        "Requests a second: Enter a whole number.": {"requests_per_s": "many"},
    }
    for words, fields in refusals.items():
        page = await admin.post(f"/apps/{appkey}/settings", **{**SETTINGS, **fields})
        assert (page.status_code, words in text_of(page)) == (400, True), text_of(page)


@pytest.mark.parametrize(
    ("path", "refusal"),
    [("/audit", Code.TIMES_IN_WRONG_ORDER), ("/statistics", Code.DATES_IN_WRONG_ORDER)],
)
async def test_days_in_the_wrong_order_are_said_in_the_readers_language(
    console: ConsoleInstallation, path: str, refusal: Code
) -> None:
    await console.app(team_id=await console.team("News", sender="sender"))
    sender = await console.logged_in("sender")
    console.analytics.refusal = refusal
    page = await sender.get(f"{path}?first=2026-09-20&last=2026-09-10", **{"Accept-Language": "zh"})
    assert "起始日期不能晚于结束日期。" in text_of(page)
    assert 'aria-describedby="e-first"' in page.text
