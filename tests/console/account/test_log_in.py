"""First start, log-in and log-out, sessions and CSRF tokens."""

import re
from pathlib import Path

import httpx
import pyotp
import pytest

from console.settings import ConsoleSettings
from console.shell.middleware import local_path
from console.shell.sessions import IDLE_MS, LONGEST_MS, SEEN_STEP_MS, Sessions
from protos.accounts.v1.service_pb2 import GetUsersRequest, UpdateUserRequest
from services.domain.master_key import MasterKey
from services.domain.settings import SettingsError, load
from services.process.clock import ManualClock
from testkit.waiting import until
from tests.console.conftest import OPERATOR, PASSWORD, START_MS, Browser, ConsoleInstallation, running_console, text_of


async def test_the_first_start_prints_a_link_with_which_the_administrator_begins(
    capsys: pytest.CaptureFixture[str], console: ConsoleInstallation
) -> None:
    async def printed() -> re.Match[str] | None:
        return re.search(r"http://127\.0\.0\.1:8080(/link\?token=link_\S+)", capsys.readouterr().out)

    link = await until(printed)
    browser = console.browser()
    assert "For the user admin." in text_of(await browser.get(link[1]))
    token = link[1].partition("=")[2]
    differs = await browser.post("/link", token=token, password=PASSWORD, repeated="another")
    assert (differs.status_code, "The two passwords differ." in text_of(differs)) == (400, True)
    for weak, words in (
        ("abcabcabcabc", "no repetition and no sequence"),
        ("password1234!", "one of the commonest"),
        ("the admin's own", "without “admin”"),
    ):
        refused = await browser.post("/link", token=token, password=weak, repeated=weak)
        assert (refused.status_code, words in text_of(refused)) == (400, True)
    short = await browser.post("/link", token=token, password="short", repeated="short")
    assert (short.status_code, "12 to 256 characters" in text_of(short)) == (400, True)
    begun = await browser.post("/link", token=token, password=PASSWORD, repeated=PASSWORD)
    assert (begun.status_code, begun.headers["location"]) == (303, "/account/second-factor")
    await enrol_second_factor(browser)
    fields = {"secret": "A", "uri": f"otpauth://totp/{'a' * 5000}", "code": "000000", "password": PASSWORD}
    too_long = await browser.post("/account/second-factor", **fields)
    assert (too_long.status_code, "data:image" in too_long.text) == (400, False)
    assert "Register your first app" in text_of(await browser.get("/"))
    again = await console.browser().get(link[1])
    assert (again.status_code, "used, replaced or expired" in text_of(again)) == (404, True)


async def enrol_second_factor(browser: Browser) -> None:
    page = await browser.get("/account/second-factor")
    secret = re.search(r'name="secret" value="(\w+)"', page.text)
    assert secret is not None
    assert 'src="data:image/svg+xml;base64,' in page.text
    code = pyotp.TOTP(secret[1]).at(START_MS // 1000)

    async def send(code: str, password: str) -> httpx.Response:
        fields = {"secret": secret[1], "uri": "", "code": code, "password": password}
        return await browser.post("/account/second-factor", **fields)

    wrong = await send("000000", PASSWORD)
    assert (wrong.status_code, "Check the clock" in text_of(wrong)) == (400, True)
    for password in ("", "wrong"):
        refused = await send(code, password)
        assert (refused.status_code, "The current password is wrong." in text_of(refused)) == (400, True)
    kept = await send(f"{code[:3]} {code[3:]}", PASSWORD)
    assert len(re.findall(r"<code>[a-z2-7]{4}(?:-[a-z2-7]{4}){3}</code>", kept.text)) == 10


async def test_a_user_with_a_second_factor_is_asked_for_the_code(console: ConsoleInstallation) -> None:
    await console.user("alice")
    browser = await console.logged_in("alice")
    page = await browser.get("/account/second-factor")
    secret = re.search(r'name="secret" value="(\w+)"', page.text)
    assert secret is not None
    totp = pyotp.TOTP(secret[1])
    fields = {"secret": secret[1], "code": totp.at(START_MS // 1000), "password": PASSWORD}
    assert (await browser.post("/account/second-factor", **fields)).is_success
    other = console.browser()
    asked = await other.log_in("alice")
    assert (asked.status_code, "authenticator app" in text_of(asked)) == (200, True)
    assert (await other.get("/apps")).headers["location"] == "/log-in?next=%2Fapps"
    await other.log_in("alice")
    assert "code is wrong" in text_of(await other.post("/log-in", code="000000"))
    console.clock.move(30)
    done = await other.post("/log-in", code=totp.at(console.clock.now_ms() // 1000))
    assert (done.status_code, done.headers["location"]) == (303, "/")
    assert (await other.get("/apps")).status_code == 200
    late = console.browser()
    await late.log_in("alice")
    console.clock.move(5 * 60)
    assert "took too long" in text_of(await late.post("/log-in", code=totp.at(console.clock.now_ms() // 1000)))


async def test_wrong_passwords_say_nothing_more_and_are_limited(console: ConsoleInstallation) -> None:
    await console.user("alice")
    browser = console.browser()
    for login in ("alice", "nobody"):
        refused = await browser.log_in(login, "wrong")
        assert (refused.status_code, "The name or the password is wrong." in text_of(refused)) == (400, True)
    for _ in range(9):
        await browser.log_in("alice", "wrong")
    limited = await browser.log_in("alice")
    assert (limited.status_code, limited.headers["retry-after"]) == (429, "30")


async def test_a_session_ends_with_the_log_out_of_everything_and_with_the_user(console: ConsoleInstallation) -> None:
    user_id = await console.user("alice")
    browser, other = await console.logged_in("alice"), await console.logged_in("alice")
    stolen = browser.http.cookies["carillon"]
    thief = console.browser(Cookie=f"carillon={stolen}")
    assert (await thief.get("/")).status_code == 200
    assert (await browser.post("/log-out")).headers["location"] == "/log-in"
    assert (await thief.get("/")).status_code == 303
    assert "You are logged out." in text_of(await browser.get("/log-in"))
    unknown = await browser.get("/why?appkey=1&name=张三")
    assert unknown.headers["location"] == "/log-in?next=%2Fwhy%3Fappkey%3D1%26name%3D%25E5%25BC%25A0%25E4%25B8%2589"
    page = await browser.get("/log-in?next=/why?name=张三%26x")
    assert 'action="/log-in?next=/why%3Fname%3D%E5%BC%A0%E4%B8%89%26x"' in page.text
    entered = await browser.post("/log-in?next=/why%3Fname%3D%E5%BC%A0%E4%B8%89", login="alice", password=PASSWORD)
    assert entered.headers["location"] == "/why?name=%E5%BC%A0%E4%B8%89"
    assert (await other.get("/")).status_code == 200
    copied = console.browser(Cookie=f"carillon={other.http.cookies['carillon']}")
    assert (await copied.get("/")).status_code == 200
    assert (await other.post("/account/sessions")).status_code == 303
    assert (await copied.get("/")).status_code == 303
    again = await console.logged_in("alice")
    await console.accounts.UpdateUser(UpdateUserRequest(user_id=user_id, disabled=True, origin=OPERATOR))
    assert (await again.get("/")).headers["location"] == "/log-in"


async def test_a_browser_that_was_in_before_gets_in_while_strangers_try_the_name(console: ConsoleInstallation) -> None:
    await console.user("alice")
    await console.user("bob")
    browser = await console.logged_in("alice")
    (cookie,) = (each for each in (await browser.log_in("alice")).headers.get_list("set-cookie") if "browser" in each)
    pattern = r"carillon-browser=[0-9a-f]{16}\.[\w-]+; Max-Age=15552000; Path=/; HttpOnly; SameSite=Lax"
    assert re.fullmatch(pattern, cookie), cookie
    assert (await browser.post("/log-out")).status_code == 303
    for number in range(30):
        stranger = console.browser(address=f"198.51.{number}.1")
        await stranger.log_in("alice", "wrong")
    fresh = console.browser(address="203.0.113.5")
    limited = await fresh.log_in("alice")
    assert (limited.status_code, limited.headers["retry-after"]) == (429, "60")
    fresh.http.cookies.set("carillon-browser", browser.http.cookies["carillon-browser"], domain="console.local")
    assert (await fresh.log_in("alice")).status_code == 303
    await browser.log_in("bob")  # both users have logged in with this browser
    assert browser.http.cookies["carillon-browser"].count(":") == 1
    before = browser.http.cookies["carillon-browser"]
    new = "quite another one"
    changed = await browser.post("/account/password", present=PASSWORD, new=new, repeated=new)
    assert changed.status_code == 303
    assert browser.http.cookies["carillon-browser"] != before
    assert browser.http.cookies["carillon-browser"].count(":") == 1


async def test_a_log_out_is_for_good_in_every_console_and_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    async with running_console(tmp_path, clock) as console:
        await console.user("alice")
        browser = await console.logged_in("alice")
        stolen = browser.http.cookies["carillon"]
        beside = await console.logged_in("alice")
        kept = beside.http.cookies["carillon"]
        assert (await browser.post("/log-out")).headers["location"] == "/log-in"
        assert (await console.browser(Cookie=f"carillon={stolen}").get("/")).status_code == 303
    clock.move(60)
    async with running_console(tmp_path, clock) as console:
        assert (await console.browser(Cookie=f"carillon={stolen}").get("/")).status_code == 303
        assert (await console.browser(Cookie=f"carillon={kept}").get("/")).status_code == 200


async def test_a_log_out_that_cannot_be_noted_says_so(console: ConsoleInstallation) -> None:
    await console.user("alice")
    browser = await console.logged_in("alice")
    with console.servers["accounts"].away():
        left = await browser.post("/log-out")
        assert left.status_code == 303, text_of(left)
    assert "could not note it" in text_of(await browser.get("/log-in"))
    assert (await browser.get("/")).status_code == 303


@pytest.mark.parametrize("demand", ["administrators", "everyone"])
async def test_where_a_second_factor_is_demanded_nothing_else_is_open_before_it_is_set_up(
    tmp_path: Path, demand: str
) -> None:
    async with running_console(tmp_path, ManualClock(START_MS), console_second_factor=demand) as console:
        await console.user("root", administrator=True)
        await console.user("alice")
        alice, root = console.browser(), console.browser()
        assert (await alice.log_in("alice")).status_code == 303
        assert (await root.log_in("root")).status_code == 303
        assert ((await alice.get("/")).status_code == 200) == (demand == "administrators")
        for path in ("/", "/account", "/apps", "/users", "/statistics.csv", "/live", "/account/password"):
            assert (await root.get(path)).headers["location"] == "/account/second-factor", path
        live = await root.get("/live", Accept="text/event-stream")
        assert (live.status_code, live.headers["hx-redirect"]) == (401, "/account/second-factor")
        await root.get("/account/second-factor")
        refused = await root.post("/account", display_name="Root", locale="", zone="")
        assert (refused.status_code, "Set up a second factor first" in text_of(refused)) == (403, True)
        page = text_of(await root.get("/account/second-factor"))
        assert ("demands a second factor" in page, "Not now" in page) == (True, False)
        await enrol_second_factor(root)
        assert (await root.get("/users")).status_code == 200
        assert (await root.post("/account", display_name="Root", locale="", zone="")).status_code == 303
        other = console.browser()
        await other.log_in("alice")
        await other.get("/account/second-factor" if demand == "everyone" else "/")
        assert (await other.post("/log-out")).headers["location"] == "/log-in"


async def test_an_administrator_does_not_remove_the_own_second_factor(console: ConsoleInstallation) -> None:
    user_id = await console.user("root", administrator=True)
    await console.user("other", administrator=True)
    root = await console.logged_in("root")
    await enrol_second_factor(root)
    assert "Remove the second factor" not in text_of(await root.get(f"/users/{user_id}"))
    refused = await root.post(f"/users/{user_id}", change="remove-second-factor")
    assert (refused.status_code, "Another administrator must remove" in text_of(refused)) == (403, True)
    other = await console.logged_in("other")
    assert (await other.post(f"/users/{user_id}", change="remove-second-factor")).status_code == 303


async def test_a_form_needs_the_token_of_its_own_session(console: ConsoleInstallation) -> None:
    await console.user("alice")
    alice, other = await console.logged_in("alice"), console.browser()
    await other.get("/log-in")
    for token in ("", "wrong", "ä", other.csrf):
        refused = await alice.post("/account", csrf=token, display_name="Mallory", locale="", zone="")
        assert (refused.status_code, "out of date" in text_of(refused)) == (403, True)
    alice.http.headers["Sec-Fetch-Site"] = "cross-site"
    assert (await alice.post("/account", display_name="Mallory", locale="", zone="")).status_code == 403
    alice.http.headers["Sec-Fetch-Site"] = "same-origin"
    assert (await alice.post("/account", display_name="Alice", locale="zh-CN", zone="Europe/Paris")).status_code == 303
    page = await alice.get("/account")
    assert 'lang="zh-CN"' in page.text
    assert ">Alice<" in page.text
    before = alice.csrf
    await alice.log_in("alice")
    assert alice.csrf != before


async def test_a_user_says_where_notices_go(console: ConsoleInstallation) -> None:
    user_id = await console.user("alice")
    alice = await console.logged_in("alice")
    fields = {"display_name": "Alice", "locale": "", "zone": ""}
    refused = await alice.post("/account", **fields, mail_address="alice")
    assert (refused.status_code, "such as alice@example.org" in text_of(refused)) == (400, True)
    wrong = {"display_name": "\x07", "locale": "", "zone": "Mars/Olympus", "mail_address": "alice"}
    refused = await alice.post("/account", **wrong)
    assert "3 fields must be corrected:" in text_of(refused)
    assert 'value="Mars/Olympus"' in refused.text, "what was typed is kept"
    assert (await alice.post("/account", display_name="Alice", zone="Mars/Olympus")).status_code == 400, "fields lack"
    valid = {**wrong, "display_name": "Alicia", "zone": "Europe/Paris"}
    assert (await alice.post("/account", **valid)).status_code == 400
    (user,) = (await console.accounts.GetUsers(GetUsersRequest(user_ids=[user_id]))).users
    assert (user.display_name, user.zone) == ("alice", ""), "a check changes nothing"
    assert (await alice.post("/account", **fields, mail_address=" alice@example.org ")).status_code == 303
    (user,) = (await console.accounts.GetUsers(GetUsersRequest(user_ids=[user_id]))).users
    assert user.mail_address == "alice@example.org"
    assert 'value="alice@example.org"' in (await alice.get("/account")).text


async def test_a_log_in_form_that_another_tab_put_out_of_date_is_shown_anew(console: ConsoleInstallation) -> None:
    await console.user("alice")
    browser = await console.logged_in("alice")
    await browser.get("/log-in?next=/apps")
    old = browser.csrf
    assert (await browser.post("/log-out")).status_code == 303
    sent = await browser.post("/log-in?next=/apps", csrf=old, login="alice", password=PASSWORD)
    assert (sent.status_code, sent.headers["location"]) == (303, "/log-in?next=/apps")
    again = await browser.get(sent.headers["location"])
    assert "The log-in form was out of date. Fill it in again." in text_of(again)
    assert (await browser.get("/apps")).status_code == 303
    entered = await browser.post("/log-in?next=/apps", login="alice", password=PASSWORD)
    assert (entered.status_code, entered.headers["location"]) == (303, "/apps")
    browser.http.headers["Sec-Fetch-Site"] = "cross-site"
    assert (await browser.post("/log-in", csrf="", login="alice", password=PASSWORD)).status_code == 403


async def test_a_form_of_an_ended_session_asks_to_log_in_beside_it(console: ConsoleInstallation) -> None:
    await console.user("alice")
    alice = await console.logged_in("alice")
    alice.http.cookies.clear()
    ended = await alice.post("/account", display_name="Lost", locale="", zone="")
    words = text_of(ended)
    assert (ended.status_code, "Your session has ended Nothing was changed." in words) == (403, True), words
    assert '<a class="button primary" href="/log-in" target="_blank" rel="noopener">' in ended.text
    assert (await alice.log_in("alice")).status_code == 303
    assert (await alice.post("/account", display_name="Kept", locale="", zone="")).status_code == 303
    assert ">Kept<" in (await alice.get("/account")).text


async def test_every_answer_has_the_security_headers_and_pages_are_not_kept(console: ConsoleInstallation) -> None:
    browser = console.browser()
    for path in ("/", "/log-in", "/nowhere", "/static/console.css", "/static/nothing.css"):
        headers = (await browser.get(path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        is_file = path.endswith("console.css")
        assert headers["cache-control"] == ("public, max-age=60" if is_file else "no-store")
        assert ("set-cookie" in headers) == (path == "/")
        for cookie in headers.get_list("set-cookie"):
            assert re.fullmatch(r"carillon=[\w-]+; Path=/; HttpOnly; SameSite=Lax", cookie)
    page = (await browser.get("/log-in")).text
    assert not re.search(r"<style|style=|<script>|\son\w+=|javascript:", page)
    versions = re.findall(r'(?:href|src)="(/static/[^"]+)"', page)
    for url in versions:
        assert (await browser.get(url)).headers["cache-control"] == "public, max-age=31536000, immutable"


async def test_requests_that_are_no_forms_are_refused(console: ConsoleInstallation) -> None:
    browser = console.browser()
    await browser.get("/log-in")
    assert (await browser.http.post("/log-in", json={"login": "alice"})).status_code == 415
    assert (await browser.post("/log-in", login="a" * 70_000)).status_code == 413
    assert (await browser.http.put("/log-in")).status_code == 405
    assert (await browser.get("/no/such/page")).status_code == 404


def test_a_session_is_valid_for_a_time_and_only_as_it_was_sealed() -> None:
    clock = ManualClock(START_MS)
    sessions = Sessions(MasterKey(bytes(32)), clock, is_secure=False)
    session = sessions.new("u1", 3)
    cookie = sessions.set_cookie(session).partition(";")[0]
    assert sessions.read(f"other=1; {cookie}") == session
    changed = cookie[:-3] + ("A" if cookie[-3] != "A" else "B") + cookie[-2:]
    another_key = Sessions(MasterKey(b"k" * 32), clock, is_secure=False)
    for header in (None, "", "carillon=", "carillon=abc", changed, cookie[:40], 'carillon="\x00', "carillon=ä"):
        assert sessions.read(header) is None
    assert another_key.read(cookie) is None
    clock.move(SEEN_STEP_MS / 1000 - 1)
    assert sessions.seen(session) is session
    clock.move(1)
    seen = sessions.seen(session)
    assert seen.seen_ms == clock.now_ms()
    clock.move((IDLE_MS - SEEN_STEP_MS) / 1000)
    assert sessions.read(cookie) is None
    for _ in range(LONGEST_MS // IDLE_MS + 1):
        renewed = sessions.set_cookie(seen).partition(";")[0]
        assert (sessions.read(renewed) is None) == (clock.now_ms() >= session.started_ms + LONGEST_MS)
        clock.move(IDLE_MS / 1000 - 1)
        seen = sessions.seen(seen)
    assert sessions.read(renewed) is None


def test_behind_https_cookies_are_for_https_alone() -> None:
    settings = load(ConsoleSettings, {"CARILLON_CONSOLE_URL": "https://push.example.org/"})
    assert (settings.public_url, settings.is_secure) == ("https://push.example.org", True)
    sessions = Sessions(MasterKey(bytes(32)), ManualClock(START_MS), is_secure=True)
    cookie = sessions.set_cookie(sessions.new())
    assert re.fullmatch(r"__Host-carillon=[\w-]+; Path=/; HttpOnly; SameSite=Lax; Secure", cookie)
    assert load(ConsoleSettings, {"CARILLON_HOST": "::"}).public_url == "http://[::1]:8080"
    for url in ("push.example.org", "ftp://push.example.org", "https://push.example.org/console"):
        with pytest.raises(SettingsError, match="CARILLON_CONSOLE_URL is"):
            load(ConsoleSettings, {"CARILLON_CONSOLE_URL": url})


@pytest.mark.parametrize("path", ["//evil.example", "/\\evil.example", "https://evil.example", "log-in", "/a\nb", ""])
def test_a_log_in_goes_on_to_pages_of_the_console_alone(path: str) -> None:
    assert local_path(path) == "/"
    assert local_path("/pushes/1?device=a%2Fb") == "/pushes/1?device=a%2Fb"
