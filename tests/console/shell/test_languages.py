"""Every text of the console is there in every language."""

import re
from pathlib import Path

from babel.messages.extract import DEFAULT_KEYWORDS, extract_from_dir
from babel.messages.frontend import parse_mapping_cfg
from babel.messages.pofile import read_po

from console.shell.languages import DEFAULT, LOCALE_DIRECTORY, Languages
from testkit.repository import ROOT

_WITH_TEXTS = (
    ROOT / "console",
    ROOT / "services" / "domain" / "channel_credentials",
    ROOT / "services" / "delivery" / "channels",
)


def extracted() -> set[str | tuple[str, ...]]:
    with (LOCALE_DIRECTORY / "babel.cfg").open() as file:
        methods, options = parse_mapping_cfg(file)  # type: ignore[no-untyped-call]
    keywords = {**DEFAULT_KEYWORDS, "gettext": None, "words": None}
    found = extract_from_dir(ROOT, methods, options, keywords, directory_filter=is_of_the_console)
    return {message for _, _, message, _, _ in found}


def is_of_the_console(directory: str) -> bool:
    path = Path(directory)
    return any(path == each or each in path.parents or path in each.parents for each in _WITH_TEXTS)


def test_every_text_has_a_translation_and_none_is_left_over() -> None:
    wanted = extracted()
    assert len(wanted) > 100
    for language in Languages().all():
        if language.tag == DEFAULT:
            continue
        file = LOCALE_DIRECTORY / language.tag / "LC_MESSAGES" / "messages.po"
        with file.open("rb") as source:
            catalog = read_po(source)
        translated = {message.id for message in catalog if message.id and message.string and not message.fuzzy}
        assert {"missing": wanted - translated, "left over": translated - wanted} == {
            "missing": set(),
            "left over": set(),
        }


def test_the_name_of_a_button_has_its_visible_words() -> None:
    """Who commands a browser by voice says what is on the button (WCAG 2.5.3)."""
    words = r'_\("([^"]+)"[^()]*\)'
    pairs = {
        (shown, name)
        for file in (ROOT / "console").rglob("*.html")
        for shown, _, name in re.findall(rf"parts\.confirmed\({words}, {words}, {words}", file.read_text())
    }
    assert len(pairs) > 5
    for language in Languages().all():
        gettext = language.gettext
        wrong = [shown for shown, name in pairs if gettext(shown).casefold() not in gettext(name).casefold()]
        assert wrong == [], language.tag


def test_chinese_names_of_parts_tokens_and_times_are_those_of_the_trade() -> None:
    chinese = Languages().chosen("zh", "")
    words = {
        **{"Roles": "组件", "Token": "设备 Token", "API token": "API 令牌", "Explain": "查原因"},
        **{"What happened": "事件记录", "After": "耗时", "Half within": "50% 设备用时"},
    }
    assert {text: chinese.gettext(text) for text in words} == words
    assert "令牌" not in chinese.gettext("The device with the token %(token)s is erased for ever")


def test_the_language_is_the_users_or_else_the_best_of_the_browser() -> None:
    languages = Languages()
    chosen = {
        ("", ""): "en",
        ("", "zh-CN,zh;q=0.9,en;q=0.8"): "zh",
        ("", "de,zh-TW;q=0.3,en;q=0.4"): "en",
        ("zh-CN", "en"): "zh",
        ("en-GB", "zh"): "en",
        ("fr", "zh"): "zh",
        ("", "*;q=x,,;q=1,zh"): "zh",
    }
    assert {wish: languages.chosen(*wish).tag for wish in chosen} == chosen
