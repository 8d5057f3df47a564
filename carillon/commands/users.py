"""`carillon user`: create, list, disable and enable users, and let them set a new password."""

from typing import TYPE_CHECKING, Any

import click

from carillon.commands.account_calls import call_accounts, find_user
from carillon.commands.output import as_json_lines, print_json, print_table, say, time_text
from carillon.commands.role_calls import command_origin
from protos.accounts.v1.accounts_pb2 import Subject
from protos.accounts.v1.service_pb2 import (
    CreateUserRequest,
    ListUsersRequest,
    ResetPasswordRequest,
    UpdateUserRequest,
    UserSummary,
)

if TYPE_CHECKING:
    from protos.accounts.v1.service_pb2 import ResetPasswordResponse, UpdateUserResponse
    from protos.accounts.v1.service_pb2_grpc import AccountsServiceAsyncStub


@click.group()
def user() -> None:
    """Create, list and change the users who log in to the service."""


@user.command()
@click.argument("login")
@click.option("--name", default="", help="The name for people; the login name unless set.")
@click.option("--administrator", is_flag=True, help="An administrator of the installation, who may do everything.")
@click.option("--locale", default="", help="A language tag such as zh-CN.")
@click.option("--zone", default="", help="A time zone such as Asia/Shanghai.")
@click.option("--issuer", help="The OpenID Connect provider that authenticates the user; needs --subject.")
@click.option("--subject", help="The user's subject at the provider.")
@as_json_lines
def add(
    login: str,
    name: str,
    administrator: bool,
    locale: str,
    zone: str,
    issuer: str | None,
    subject: str | None,
    json_output: bool,
) -> None:
    """Create a user and print the one-time token with which the user sets a password.

    A user of an OpenID Connect provider has no password, and gets no token.
    """
    if (issuer is None) != (subject is None):
        raise click.UsageError("--issuer and --subject go together")
    request = CreateUserRequest(
        login=login,
        display_name=name,
        administrator=administrator,
        locale=locale,
        zone=zone,
        subject=None if issuer is None or subject is None else Subject(issuer=issuer, subject=subject),
        origin=command_origin(),
    )
    answer = call_accounts(lambda accounts: accounts.CreateUser(request))
    if json_output:
        print_json({**_record(answer.user), **_token_record(answer.link_token, answer.link_expires_ms)})
        return
    say(f"User {answer.user.login} is created.")
    if answer.link_token:
        _print_token(answer.link_token, answer.link_expires_ms)


@user.command(name="list")
@as_json_lines
def list_users(json_output: bool) -> None:
    """List all users, by login name."""
    users = call_accounts(lambda accounts: accounts.ListUsers(ListUsersRequest())).users
    if json_output:
        for known in users:
            print_json(_record(known))
    else:
        print_table([_row(known) for known in users], "There is no user yet; see `carillon user add --help`.")


@user.command(name="set")
@click.argument("login")
@click.option("--mail", "mail_address", required=True, help="Where notices about drafts go; empty: nowhere.")
@as_json_lines
def set_user(login: str, mail_address: str, json_output: bool) -> None:
    """Change the mail address of a user."""
    _update(login, UpdateUserRequest(mail_address=mail_address), f"User {login} is changed.", json_output)


@user.command()
@click.argument("login")
@as_json_lines
def disable(login: str, json_output: bool) -> None:
    """Disable a user: nobody can log in as this user, and all sessions end at once."""
    _update(
        login, UpdateUserRequest(disabled=True), f"User {login} is disabled, and all sessions have ended.", json_output
    )


@user.command()
@click.argument("login")
@as_json_lines
def enable(login: str, json_output: bool) -> None:
    """Let a disabled user log in again."""
    _update(login, UpdateUserRequest(disabled=False), f"User {login} is enabled.", json_output)


@user.command()
@click.argument("login")
@click.option("--remove-second-factor", is_flag=True, help="Also remove the one-time codes, for a lost phone.")
@as_json_lines
def reset_password(login: str, remove_second_factor: bool, json_output: bool) -> None:
    """Print a one-time token with which the user sets a new password. Earlier tokens end."""

    async def reset(accounts: "AccountsServiceAsyncStub") -> "ResetPasswordResponse":
        user_id = (await find_user(accounts, login)).user_id
        if remove_second_factor:
            await accounts.UpdateUser(UpdateUserRequest(user_id=user_id, remove_totp=True, origin=command_origin()))
        return await accounts.ResetPassword(ResetPasswordRequest(user_id=user_id, origin=command_origin()))

    answer = call_accounts(reset)
    if json_output:
        print_json({"login": login, **_token_record(answer.link_token, answer.link_expires_ms)})
    else:
        _print_token(answer.link_token, answer.link_expires_ms)


def _update(login: str, request: UpdateUserRequest, done: str, json_output: bool) -> None:
    async def update(accounts: "AccountsServiceAsyncStub") -> "UpdateUserResponse":
        request.user_id = (await find_user(accounts, login)).user_id
        request.origin.CopyFrom(command_origin())
        return await accounts.UpdateUser(request)

    answer = call_accounts(update)
    if json_output:
        print_json(_record(answer.user))
    else:
        say(done)


def _print_token(token: str, expires_ms: int) -> None:
    say(f"One-time token, valid until {time_text(expires_ms, 'minutes')} and not shown again:", token)


def _token_record(token: str, expires_ms: int) -> dict[str, Any]:
    return {"one_time_token": token or None, "token_expires_ms": expires_ms or None}


def _record(known: UserSummary) -> dict[str, Any]:
    return {
        "user_id": known.user_id,
        "login": known.login,
        "name": known.display_name,
        "administrator": known.administrator,
        "disabled": known.disabled,
        "password": known.has_password,
        "second_factor": known.has_totp,
        "issuer": known.subject.issuer or None,
        "subject": known.subject.subject or None,
        "locale": known.locale or None,
        "zone": known.zone or None,
        "mail": known.mail_address or None,
        "created_ms": known.created_ms,
        "last_log_in_ms": known.last_log_in_ms or None,
    }


def _row(known: UserSummary) -> dict[str, str]:
    password = "password" if known.has_password else "no password yet"
    means = "OpenID Connect" if known.HasField("subject") else password
    return {
        "login": known.login,
        "name": known.display_name,
        "administrator": "yes" if known.administrator else "-",
        "logs in by": f"{means}, one-time code" if known.has_totp else means,
        "disabled": "yes" if known.disabled else "-",
        "last log-in": time_text(known.last_log_in_ms, "minutes"),
    }
