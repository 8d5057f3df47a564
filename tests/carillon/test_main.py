"""All commands: help by -h, errors of --json as JSON, tables that are not cut off outside a terminal."""

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from carillon.commands import output
from carillon.commands.app_text import app_table
from carillon.main import main
from carillon.roles import REPLAYABLE, ROLES, role_definition
from console.apps.answers import app_answer
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS, App
from services.domain.topics import SESSIONS, TOPICS
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog

STORED = [
    App(appkey="1234567890", platform=PLATFORM_ANDROID, name="The name of an app " * 3, package="org.example." * 4),
    App(appkey="2098765432", platform=PLATFORM_IOS, name="天气", package="com.example", account="an account"),
]
APPS = [app_answer(app, None, 0) for app in STORED]


def commands(group: click.Group, *names: str) -> Iterator[tuple[str, ...]]:
    """Yield the names of every command and group, from the outermost on."""
    yield names
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command
        command._help_option = None  # Click caches it; another test may have run the command alone.
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)
        else:
            yield (*names, name)


def test_every_command_has_its_help_under_h() -> None:
    for names in commands(main):
        shown = CliRunner().invoke(main, [*names, "-h"])
        assert (shown.exit_code, shown.output.startswith("Usage: ")) == (0, True), shown.output
        assert "-h, --help" in shown.output


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ("app list --json", 1, "no registry answers at"),
        ("audit push 1 --json", 1, "no analytics answers at"),
        ("audit push 99999999999999999999 --json", 2, "is not in the range"),
        ("audit app 1 --from tomorrow --json", 2, "--from"),
        ("app pause --json", 2, "name one APPKEY"),
        ("app show --json", 2, "Missing argument 'APPKEY'"),
        ("status --json", 1, "CARILLON_KAFKA_BOOTSTRAP"),
        ("replay edge --json", 2, "'edge' is not one of 'registry'"),
        ("replay registry --until yesterday --into x --json", 2, "'yesterday' is no date and time"),
        ("send --json --secret s --url http://127.0.0.1:1/ -", 1, "no answer from"),
    ],
)
def test_errors_of_json_commands_are_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, code: int, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    runner = CliRunner(env={"CARILLON_DATA_DIR": str(tmp_path)})
    failed = runner.invoke(main, arguments.split(), input="{}")
    (line,) = failed.stderr.splitlines()
    assert (failed.stdout, failed.exit_code) == ("", code)
    assert list(error := json.loads(line)) == ["error"]
    assert told in error["error"]
    plain = runner.invoke(main, [word for word in arguments.split() if word != "--json"], input="{}")
    assert (plain.exit_code, "Error: " in plain.stderr) == (code, True)


def test_exactly_the_roles_with_a_state_are_offered_for_replays() -> None:
    assert {*REPLAYABLE} == {role for role in ROLES if role_definition(role).replay is not None}


async def test_the_answers_of_replays_are_sentences(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log" / "events.db", TOPICS)
    await log.append([NewRecord(SESSIONS.name, 0, b"", b"")])
    await log.close()
    runner = CliRunner(env={"CARILLON_DATA_DIR": str(tmp_path)})
    past = ["--until", "2026-11-21T14:05:00+00:00", "--into", str(tmp_path / "past")]
    for options, told in (
        ([], "The state of registry was rebuilt from the log."),
        (["--verify"], "The live state of registry equals the one rebuilt from the log."),
        (past, f"The state of registry as of 2026-11-21T14:05:00+00:00 is in {tmp_path / 'past'}."),
    ):
        done = await asyncio.to_thread(runner.invoke, main, ["replay", "registry", *options])
        assert (done.exit_code, done.stdout.splitlines()[0]) == (0, told), done.output
        assert "Digest" in done.stdout


def test_outside_a_terminal_tables_have_no_boxes_and_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(app_table(APPS))
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["appkey", "platform", "name"]
    assert [line.split()[0] for line in lines] == [app.appkey for app in APPS]
    assert APPS[0].name.strip() in lines[0]
    assert APPS[0].package in lines[0]
    assert not set("│┃━─…") & set("".join([header, *lines]))
    assert lines == [line.rstrip() for line in lines]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_terminal_folds_other_columns_than_the_appkeys(width: int) -> None:
    terminal = io.StringIO()
    Console(file=terminal, width=width).print(app_table(APPS))
    assert all(app.appkey in terminal.getvalue() for app in APPS)
    assert "…" not in terminal.getvalue()
