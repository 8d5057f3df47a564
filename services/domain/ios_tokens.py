"""Device tokens of iOS apps: 64 to 200 hexadecimal digits, lower-cased when they enter the service.

Earlier versions registered tokens as they were given. So a token that is not registered in lower case is looked up as
it is given, and in upper case; a device that is found keeps its spelling. To Apple the cases are equal.
"""

import re

from services.errors import Code, InputError

PATTERN = r"^[<> ]*([0-9A-Fa-f][<> ]*){64,200}$"
"""The form in which a token may be given: also as Apple's old libraries print it, `<740f4707 bebcf74f …>`."""

_PRINTED = str.maketrans("", "", "<> ")
_TOKEN = re.compile(r"[0-9A-Fa-f]{64,200}")


def ios_token(given: str, at: str) -> str:
    """Return the token in lower case, without angle brackets and spaces. InputError: it is no iOS token."""
    token = given.translate(_PRINTED)
    if not _TOKEN.fullmatch(token):
        raise InputError(Code.NO_IOS_TOKEN, at=at)
    return token.lower()


def ios_tokens(given: list[str]) -> list[str]:
    """Return the entries in lower case, without angle brackets and spaces.

    None is refused: no device has the result of an entry that is not an iOS token.
    The entries are translated as one text, which is faster for long lists than a call for each.
    """
    tokens = "\0".join(given).translate(_PRINTED).lower().split("\0")
    return tokens if len(tokens) == len(given) else [token.replace("\0", "") for token in given]


def spellings(given: str) -> tuple[str, ...]:
    """Return the spellings in which a token may be registered, the lower-cased first. An Android token has one."""
    token = given.translate(_PRINTED)
    if not _TOKEN.fullmatch(token):
        return (given,)
    return tuple(dict.fromkeys((token.lower(), token, token.upper())))
