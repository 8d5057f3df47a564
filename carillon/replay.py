"""`carillon replay ROLE`: rebuild a role's state from the log."""

import json
import sys
from datetime import datetime
from pathlib import Path

import click
import uvloop

from carillon import rebuild
from carillon.commands.output import say
from carillon.environment import environment
from carillon.progress_bar import progress_bar
from carillon.roles import REPLAYABLE, role_definition
from carillon.startup import plain_errors, restrict_permissions
from services.runtime.process.settings import Settings, load


@click.command()
@click.argument("role", type=click.Choice(REPLAYABLE))
@click.option("--verify", is_flag=True, help="Compare a rebuilt state with the live one and change nothing.")
@click.option("--until", metavar="TIME", help="Build the state as of this ISO 8601 date-time; needs --into.")
@click.option(
    "--into", type=click.Path(path_type=Path), metavar="DIR", help="The new directory for the state of --until."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay(role: str, verify: bool, until: str | None, into: Path | None, as_json: bool) -> None:
    """Rebuild a role's state from the log. Nothing is ever sent.

    Without options the rebuilt state replaces the live one, and the service must be stopped. With --verify or --until
    the service may run; its state stays unchanged.

    --until TIME reads each partition of the log up to its first record that was made later. TIME is in
    CARILLON_TIMEZONE unless it carries an offset of its own. The state is left in DIR for inspection and its digest is
    printed; it never replaces the live state and cannot be compared with it.
    """
    restrict_permissions()
    if (until is None) != (into is None):
        raise click.UsageError("--until and --into go together: an earlier state never replaces the live one")
    if verify and until is not None:
        raise click.UsageError("--verify compares with the live state, which cannot be taken back to an earlier moment")
    with plain_errors(), progress_bar(shown=not as_json) as progress:
        definition = role_definition(role)
        settings = load(definition.settings, environment())
        if until is not None and into is not None:
            moment = _parse_time(until, settings)
            work = rebuild.rebuild_past(definition, settings, until=moment, into=into, progress=progress)
        elif verify:
            work = rebuild.verify(definition, settings, progress)
        else:
            work = rebuild.rebuild(definition, settings, progress)
        answer = uvloop.run(work)
    say(*([json.dumps(answer)] if as_json else _text(answer).split("\n")))
    sys.exit(0 if answer.get("equal", True) else 1)


def _text(answer: rebuild.Answer) -> str:
    """Return the answer of a replay as sentences."""
    match answer:
        case {"role": role, "equal": equal, "live": live, "rebuilt": rebuilt}:
            verdict = "equals" if equal else "differs from"
            digests = f"Digest of the live state:    {live}\nDigest of the rebuilt state: {rebuilt}"
            return f"The live state of {role} {verdict} the one rebuilt from the log.\n{digests}"
        case {"role": role, "digest": digest, "until": until, "directory": directory}:
            return f"The state of {role} as of {until} is in {directory}.\nDigest: {digest}"
        case _:
            return f"The state of {answer['role']} was rebuilt from the log.\nDigest: {answer['digest']}"


def _parse_time(text: str, settings: Settings) -> datetime:
    """Parse an ISO 8601 date-time, in the installation's time zone unless it carries an offset.

    click.BadParameter: it is none.
    """
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        wrong = f"{text!r} is no date and time such as 2026-11-21T14:05:00"
        raise click.BadParameter(wrong, param_hint="--until") from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=settings.zone())
