"""The languages of the console: catalogs in locale/, chosen by the user's setting or the browser's wish."""

import io
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo

from babel import Locale, dates, negotiate_locale, numbers, units
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from babel.support import NullTranslations, Translations

from console.apps.words import SettingWords
from console.audit.words import DetailWords
from console.pushes.words import ReasonWords, ServiceWords
from console.send.words import AudienceWords, ConditionWords
from console.shell.error_words import ErrorWords, FormFields

LOCALE_DIRECTORY = Path(__file__).resolve().parent.parent / "locale"
DEFAULT = "en"
_UNITS_S = {"day": 86_400, "hour": 3600, "minute": 60, "second": 1}
_SPANS_MS = (
    ("day", "d", 86_400_000),
    ("hour", "h", 3_600_000),
    ("minute", "min", 60_000),
    ("second", "s", 1_000),
    ("millisecond", "ms", 1),
)
"""Units of times that passed: their names in Babel, their symbols, and their lengths."""

_NAMES = {"en": "English", "zh": "中文"}


class Language:
    """One language: its texts, and how it writes numbers and times."""

    def __init__(self, tag: str, translations: NullTranslations) -> None:
        self.tag = tag
        self.name = _NAMES[tag]
        self.html_tag = {"zh": "zh-CN"}.get(tag, tag)
        self._locale = Locale.parse("zh_Hans_CN" if tag == "zh" else "en_GB")
        # Babel has no long names of units in Chinese.
        self._unit_length: Literal["short", "long"] = "short" if tag == "zh" else "long"
        self._translations = translations
        self.conditions = ConditionWords(self.gettext, self.ngettext)
        self.reason = ReasonWords(self.gettext)
        self.service = ServiceWords(self.gettext)
        self.audience = AudienceWords(self.conditions)
        self.form_fields = FormFields(self.gettext, self.ngettext)
        self.problem = ErrorWords(self.gettext, self.form_fields, self)
        self.details = DetailWords(
            self.conditions,
            self.audience,
            self.reason,
            self.service,
            SettingWords(self.gettext, self.ngettext, self.duration),
        )

    def gettext(self, text: str) -> str:
        return str(self._translations.gettext(text))

    def ngettext(self, one: str, many: str, count: int) -> str:
        return str(self._translations.ngettext(one, many, count))

    def number(self, value: int | float) -> str:
        """Return a number as all these languages write it; a page has hundreds, and Babel takes 30 times as long."""
        return f"{value:,}" if isinstance(value, int) else numbers.format_decimal(value, locale=self._locale)

    def percent(self, part: int, whole: int) -> str:
        """Return the share with one decimal; "–" of nothing."""
        return f"{100 * part / whole:.1f}".removesuffix(".0") + "%" if whole else "–"

    def moment(self, ms: int, zone: ZoneInfo) -> str:
        """Return a date and a time of day to the second."""
        return datetime.fromtimestamp(ms / 1000, zone).strftime("%Y-%m-%d %H:%M:%S")

    def ago(self, ms: int, now_ms: int) -> str:
        """Return how long ago something was, such as `3 minutes ago`."""
        return dates.format_timedelta(timedelta(milliseconds=ms - now_ms), add_direction=True, locale=self._locale)

    def duration(self, seconds: int) -> str:
        """Return a duration in the largest unit of which it is a whole number, such as `36 hours`."""
        unit = next(name for name, length in _UNITS_S.items() if seconds % length == 0)
        return units.format_unit(
            seconds // _UNITS_S[unit], f"duration-{unit}", length=self._unit_length, locale=self._locale
        )

    def span(self, ms: int) -> str:
        """Return a time that passed, to two or three digits, such as `350 ms`, `2.4 s` or `34 min`."""
        unit, symbol, length_ms = next((unit for unit in _SPANS_MS if ms >= unit[2]), _SPANS_MS[-1])
        value = ms / length_ms
        rounded = round(value, 1) if value < 20 else round(value)
        if self.tag == DEFAULT:
            return f"{self.number(rounded)} {symbol}"
        return units.format_unit(rounded, f"duration-{unit}", length="short", locale=self._locale)


class Languages:
    """All languages there are, read once."""

    def __init__(self, directory: Path = LOCALE_DIRECTORY) -> None:
        self._by_tag = {DEFAULT: english()}
        for file in sorted(directory.glob("*/LC_MESSAGES/messages.po")):
            tag = file.parent.parent.name
            self._by_tag[tag] = Language(tag, _translations(file))

    def all(self) -> Iterable[Language]:
        return self._by_tag.values()

    def chosen(self, locale: str, accepted: str) -> Language:
        """Return the language of a user's locale, else the best one of an Accept-Language header."""
        wishes = [locale, *_accepted(accepted)]
        found = negotiate_locale([wish.replace("-", "_") for wish in wishes if wish], list(self._by_tag), sep="_")
        return self._by_tag[found or DEFAULT]


def english() -> Language:
    """Return the language of the texts in the code, in which programs are answered."""
    return Language(DEFAULT, NullTranslations())


@cache
def _translations(file: Path) -> NullTranslations:
    compiled = io.BytesIO()
    with file.open("rb") as source:
        write_mo(compiled, read_po(source, locale=file.parent.parent.name))
    compiled.seek(0)
    return Translations(compiled)


def _accepted(header: str) -> list[str]:
    """Return the language tags of an Accept-Language header, the most wanted first."""
    weighed: list[tuple[float, int, str]] = []
    for index, part in enumerate(header.split(",")[:20]):
        tag, _, weight = part.partition(";q=")
        try:
            weighed.append((-float(weight or 1), index, tag.strip()))
        except ValueError:
            continue
    return [tag for _, _, tag in sorted(weighed) if tag and tag != "*"]
