"""Text for terminals: what devices and senders wrote must neither control a terminal nor mislead its reader."""

import json

_JOINERS = "\u200c\u200d"
"""Characters of Persian words and of emoji that `str.isprintable` takes for control characters."""


def printable(text: str) -> str:
    """Return the text as one line in which each control character is its JSON escape, such as `\\u001b`.

    Replaced are all characters that Unicode calls neither letters, marks, numbers, punctuation, symbols nor the space,
    such as those of escape sequences, line ends, and directions of text. One line of JSON keeps its meaning.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in _JOINERS else json.dumps(sign)[1:-1] for sign in text)
