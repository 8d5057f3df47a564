"""`carillon user`, `carillon team` and `carillon token` against the running role's socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from carillon.main import main
from protos.accounts.v1.service_pb2 import UseLinkRequest
from services.net.rpc.caller import UserSocket
from services.net.rpc.server import RpcListener, serve
from testkit.services import running_services
from tests.services.accounts.conftest import APP, FRONT_END, OTHER_APP, PASSWORD, AccountsHarness


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Carillon = Callable[..., Awaitable[Outcome]]


@pytest.fixture
async def carillon(harness: AccountsHarness) -> AsyncIterator[Carillon]:
    """Run the role with the commands' socket; return a function that runs `carillon` with its arguments in a thread."""
    user_socket = UserSocket("commands", harness.directory / "carillon.sock")
    server = serve([f"unix:{user_socket.inner}"], users=user_socket.users)
    env = {"CARILLON_DATA_DIR": str(harness.directory), "CARILLON_TIMEZONE": "Asia/Shanghai", "COLUMNS": "200"}

    def invoke(arguments: tuple[str, ...]) -> Outcome:
        result = CliRunner().invoke(main, arguments, env=env)
        return Outcome(result.exit_code, result.stdout, result.stderr)

    async def call(*arguments: str) -> Outcome:
        return await asyncio.to_thread(invoke, arguments)

    async with harness.running() as role:
        role.servicers[0](server)
        async with running_services([RpcListener("calls", server), user_socket]):
            yield call
    user_socket.close()


async def test_users_are_added_listed_disabled_and_given_new_passwords(
    harness: AccountsHarness, carillon: Carillon
) -> None:
    assert "no user yet" in (await carillon("user", "list")).out
    (made,) = (await carillon("user", "add", "root", "--administrator", "--name", "管理员", "--json")).records
    assert (made["login"], made["name"], made["administrator"], made["password"]) == ("root", "管理员", True, False)
    (fact,) = await harness.facts("accounts", "user")
    assert (fact.meta.origin.interface, fact.meta.origin.actor) == ("cli", "")
    assert "@" in fact.meta.origin.address
    use = UseLinkRequest(link_token=made["one_time_token"], new_password=PASSWORD, origin=FRONT_END)
    await harness.log_ins.UseLink(use)
    assert await harness.result("root") == "OK"
    invited = await carillon("user", "add", "bob", "--issuer", "https://id.example", "--subject", "42", "--json")
    assert (invited.records[0]["one_time_token"], invited.records[0]["subject"]) == (None, "42")
    listed = (await carillon("user", "list", "--json")).records
    assert [(user["login"], user["password"]) for user in listed] == [("bob", False), ("root", True)]
    shown = (await carillon("user", "list")).out
    assert "OpenID Connect" in shown
    assert "2027-01-15 16:00+08:00" in shown
    mailed = (await carillon("user", "set", "Root", "--mail", "root@example.org", "--json")).records[0]
    assert mailed["mail"] == "root@example.org"
    wrong = await carillon("user", "set", "Root", "--mail", "root")
    assert (wrong.code, "mail_address must be a mail address" in wrong.err) == (1, True)
    assert (await carillon("user", "disable", "Root", "--json")).records[0]["disabled"] is True
    assert await harness.result("root") == "REFUSED"
    refused = await carillon("user", "reset-password", "root")
    assert (refused.code, refused.err) == (1, "Error: 'root' is disabled; enable the user first\n")
    assert "is enabled" in (await carillon("user", "enable", "root")).out
    reset = await carillon("user", "reset-password", "root", "--remove-second-factor")
    assert "not shown again:\nlink_" in reset.out
    unknown = await carillon("user", "disable", "nobody", "--json")
    assert "no user 'nobody'; `carillon user list`" in json.loads(unknown.err)["error"]
    assert (await carillon("user", "add", "x", "--issuer", "y")).code == 2


async def test_teams_have_members_apps_rules_and_tokens(harness: AccountsHarness, carillon: Carillon) -> None:
    await harness.user("alice")
    for appkey in (APP, OTHER_APP):
        await harness.add_app(appkey)
    assert "no team yet" in (await carillon("team", "list")).out
    assert (await carillon("team", "add", "News")).out == "Team News is created.\n"
    assert "is sender of team news" in (await carillon("team", "add-member", "news", "alice", "--role", "sender")).out
    await carillon("team", "give-app", "News", APP)
    (changed,) = (
        await carillon("team", "set", "News", "--approve-broadcasts", "on", "--approve-above", "1000", "--json")
    ).records
    assert changed["members"] == {"alice": "sender"}
    assert (changed["apps"], changed["approve_broadcasts"], changed["approve_above"]) == ([APP], True, 1000)
    assert (await carillon("team", "list", "--json")).records == [changed]
    shown = (await carillon("team", "list")).out
    assert "alice (sender)" in shown
    assert "broadcasts (from 50 %), above 1000 devices" in shown
    (left,) = (await carillon("team", "remove-member", "News", "alice", "--json")).records
    assert left["members"] == {}
    (lifted,) = (await carillon("team", "set", "News", "--approve-above", "off", "--json")).records
    assert (lifted["approve_broadcasts"], lifted["approve_above"], lifted["confirm_erasures"]) == (True, None, False)
    (erasing,) = (await carillon("team", "set", "News", "--confirm-erasures", "on", "--json")).records
    assert (erasing["approve_broadcasts"], erasing["confirm_erasures"]) == (True, True)
    assert "broadcasts (from 50 %), erasures" in (await carillon("team", "list")).out
    await carillon("team", "set", "News", "--confirm-erasures", "off")
    too_many = "9" * 20
    for arguments in (
        ("set", "News"),
        ("set", "News", "--approve-above", "many"),
        ("set", "News", "--approve-above", too_many),
        ("add-member", "News", "alice"),
    ):
        assert (await carillon("team", *arguments)).code == 2
    assert "no app" in (await carillon("team", "give-app", "News", "1")).err

    create = await carillon("token", "create", "News", "ci", "--role", "sender", "--expires", "30d", "--json")
    (made,) = create.records
    await harness.directory_of_accounts.refresh()
    assert harness.directory_of_accounts.token(made["token"], 0) is not None
    (listed,) = (await carillon("token", "list", "--team", "News", "--json")).records
    assert listed == {name: value for name, value in made.items() if name != "token"} | {"team": "News"}
    assert "sender" in (await carillon("token", "list")).out
    assert (await carillon("token", "revoke", made["token_id"])).out == "The API token is refused from now on.\n"
    again = await carillon("token", "revoke", made["token_id"])
    assert "or it is revoked" in again.err
    assert "no API token" in (await carillon("token", "list")).out
    assert "carillon_" in (await carillon("token", "create", "News", "again", "--role", "viewer")).out
