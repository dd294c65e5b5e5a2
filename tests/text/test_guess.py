"""Warnings of text that is in the target language already."""

import warnings

import pytest

from oaxe.text.guess import warn_of_target

GERMAN = ["Der Hund ist auf der Straße.", "Die Frau und der Mann sind im Haus."] * 3


def test_text_in_the_target_language_is_warned_of() -> None:
    with pytest.warns(
        UserWarning, match=r"^here looks like German already, .* English into German"
    ):
        warn_of_target(GERMAN, ("en", "de"), "here")


@pytest.mark.parametrize("languages", [("de", "en"), ("de", "fr"), ("", ""), ("en", "xx")])
def test_nothing_is_said_of_other_text_and_unknown_languages(languages: tuple[str, str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_target(GERMAN, languages, "here")
