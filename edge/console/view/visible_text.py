"""Text for a person who must see all of it: characters that are invisible or turn the text round are named."""

import unicodedata

_INVISIBLE = {"Cc", "Cf", "Zl", "Zp", "Co", "Cn"}
_BLANK = {0x115F, 0x1160, 0x2800, 0x3164, 0xFFA0}
"""Characters that count as letters or symbols and look like nothing."""

_KEPT = {"\n", "\t"}
_JOINERS = {"\u200c", "\u200d"}
"""Characters that writing systems and emoji need between two others; elsewhere they are shown."""


def visible(text: str) -> str:
    """Return the text with each control, format and bidirectional override character as `⟨U+202E⟩`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(text, index) for index in range(len(text)))


def _visible(text: str, index: int) -> str:
    char = text[index]
    if char in _KEPT or (char in _JOINERS and _joins(text, index)):
        return char
    is_hidden = unicodedata.category(char) in _INVISIBLE or ord(char) in _BLANK
    return f"⟨U+{ord(char):04X}⟩" if is_hidden else char


def _joins(text: str, index: int) -> bool:
    """Return whether a joiner stands between two characters beyond ASCII, neither of which is a joiner too."""
    around = text[max(0, index - 1) : index] + text[index + 1 : index + 2]
    return len(around) == 2 and not any(char.isascii() or char in _JOINERS for char in around)
