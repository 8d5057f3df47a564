"""Device tokens of iOS apps: 64 to 200 hexadecimal digits, lower-cased when they enter the service.

Earlier versions registered them as they were given. So a token that is not registered in lower case is looked up as it
is given, and in upper case; a device that is found stays registered as it is. To Apple the cases are equal.
"""

import re

from services.runtime.errors import InputError

PATTERN = r"^[<> ]*([0-9A-Fa-f][<> ]*){64,200}$"
"""The form in which a token may be given: also as Apple's old libraries print it, `<740f4707 bebcf74f …>`."""

_PRINTED = str.maketrans("", "", "<> ")
_TOKENS = re.compile(r"[0-9a-f]{64,200}(?:\n[0-9a-f]{64,200})*")
_TOKEN = re.compile(r"[0-9A-Fa-f]{64,200}")


def ios_token(given: str, at: str) -> str:
    """Return the token in lower case, without angle brackets and spaces. InputError: it is no iOS token."""
    token = given.translate(_PRINTED)
    if not _TOKEN.fullmatch(token):
        raise InputError(f"{at} is no iOS token: it must have 64 to 200 hexadecimal digits")
    return token.lower()


def ios_tokens(given: list[str], at: str) -> list[str]:
    """Return each entry of a list as `ios_token` does; one by one only if an entry is wrong."""
    joined = "\n".join(given).translate(_PRINTED).lower()
    tokens = joined.split("\n")
    if len(tokens) == len(given) and _TOKENS.fullmatch(joined):
        return tokens
    return [ios_token(token, f"{at}[{index}]") for index, token in enumerate(given)]


def spellings(given: str) -> tuple[str, ...]:
    """Return the names under which a token may be registered, today's first. Tokens of Android apps have one."""
    token = given.translate(_PRINTED)
    if not _TOKEN.fullmatch(token):
        return (given,)
    return tuple(dict.fromkeys((token.lower(), token, token.upper())))
