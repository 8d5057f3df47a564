"""The question why a user did not get a push: the form, and the list of pushes to choose from."""

from tests.roles.console.conftest import ConsoleInstallation, text_of
from tests.roles.console.test_pushes import MSGID, device, push_of_app, viewer_of


async def test_a_question_without_an_answer_comes_back_in_the_form(console: ConsoleInstallation) -> None:
    appkey = await push_of_app(console)
    await device(console, appkey, "token-1", "alice")
    viewer = await viewer_of(console)
    for msgid in (str(MSGID + 1), "abc"):
        page = await viewer.get(f"/apps/{appkey}/why?name=alice&push={msgid}")
        assert (page.status_code, "No push of News has this message id." in text_of(page)) == (404, True)
        assert f'<option value="{appkey}" selected>' in page.text
        assert 'value="alice"' in page.text
        assert f'value="{msgid}"' in page.text
    path = f"/apps/{appkey}/why?name=alice&push={MSGID}"
    chinese = await viewer.get(path.replace(str(MSGID), "7"), **{"Accept-Language": "zh-CN"})
    assert "News 没有此消息 ID 的推送。" in text_of(chinese)
    console.analytics.pushes[MSGID].appkey = "another"
    assert "No push of News has this message id." in text_of(await viewer.get(path))


async def test_an_unknown_alias_comes_back_in_the_form(console: ConsoleInstallation) -> None:
    appkey = await push_of_app(console)
    viewer = await viewer_of(console)
    page = await viewer.get(f"/apps/{appkey}/why?name=mallory&push={MSGID}")
    assert (page.status_code, "No device of News has this token or alias now." in text_of(page)) == (404, True)
    assert 'action="/why"' in page.text
    assert 'value="mallory"' in page.text
    assert f'value="{MSGID}"' in page.text
    without_a_name = await viewer.get(f"/why?appkey={appkey}&name=&push={MSGID}")
    assert (without_a_name.status_code, f'value="{MSGID}"' in without_a_name.text) == (200, True)
