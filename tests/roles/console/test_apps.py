"""Apps: registration, secrets that are shown once, and pauses."""

import re

from tests.roles.console.conftest import ConsoleInstallation, text_of


async def test_an_app_is_registered_for_a_team_and_its_secret_is_shown_once(console: ConsoleInstallation) -> None:
    team_id = await console.team("News", viewer="viewer")
    await console.user("root", administrator=True)
    root = await console.logged_in("root")
    await root.get("/apps/new")
    form = {"name": "", "platform": "android", "package": "org.example.news", "team_id": team_id}
    refused = await root.post("/apps/new", **form)
    assert (refused.status_code, 'role="alert"' in refused.text, "org.example.news" in refused.text) == (
        400,
        True,
        True,
    )
    made = await root.post("/apps/new", **{**form, "name": "News & <more>"})
    page = await root.get(made.headers["location"])
    assert "News & <more>" in text_of(page)
    secret = re.search(r"<code[^>]*>([A-Za-z0-9]{64})</code>", page.text)
    assert secret is not None
    assert secret[1] not in (await root.get(made.headers["location"])).text
    viewer = await console.logged_in("viewer")
    assert "News & <more>" in text_of(await viewer.get("/apps"))
    assert "secret" not in (await viewer.get(made.headers["location"])).text.casefold().replace("former secret key", "")
    await root.get(f"{made.headers['location']}/secret")
    rotated = await root.post(f"{made.headers['location']}/secret", keep_old="24h")
    page = await root.get(rotated.headers["location"])
    assert "valid until 2026-09-22 22:13:20" in text_of(page)


async def test_an_app_is_paused_with_a_reason_and_sends_again(console: ConsoleInstallation) -> None:
    appkey = await console.app(team_id=await console.team("News", approver="approver"))
    browser = await console.logged_in("approver")
    path = f"/apps/{appkey}"
    await browser.get(path)
    assert (await browser.post(f"{path}/pause", change="pause", reason="x" * 300)).status_code == 400
    assert (await browser.post(f"{path}/pause", change="pause", reason="storm <1>")).headers["location"] == path
    paused = text_of(await browser.get(path))
    assert "Nothing of this app is sent at present: it is paused. storm <1>" in paused
    assert "Let it send again" in paused
    await browser.post(f"{path}/pause", change="resume")
    assert "The app sends again." in text_of(await browser.get(path))
    assert "Pause sending" in text_of(await browser.get(path))
