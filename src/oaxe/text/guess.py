"""Which of two languages a text is in: files get swapped, and names do not always tell."""

import re
import warnings
from collections.abc import Iterable, Sequence
from itertools import islice

from oaxe.text.languages import language_name, main_code

# Words that are in nearly every sentence. A language is here or among the scripts.
FREQUENT = {
    "bg": "на и да се от за не е че са по с до като това или който",
    "ca": "el la de i que és els les per amb una no del un en al com",
    "cs": "a v na že je se s z do o by to ale jsem jsou ve pro",
    "da": "og at det er en til på af for ikke der med som han jeg den et",
    "de": "der die das und ist nicht ein eine einen den dem mit von zu sich auf für im sind es",
    "en": "the a of and to is are that it was for with his her he she they this on an",
    "es": "el la los las de que y en un una es se no por con su para del al",
    "fi": "ja on ei se että hän oli mutta ovat kun niin myös joka tämä ole",
    "fr": "le la les de des et est un une dans que qui pas pour il elle du au sur avec",
    "hu": "a az és hogy nem egy is van volt meg azt de ez vagy csak",
    "it": "il la di che e è un una non per del della con sono le gli al nel",
    "nl": "de het een en van is dat niet op zijn met voor hij zij aan te wordt",
    "no": "og det er en til på av for ikke som med han jeg den et å har",
    "pl": "i w na się nie z do że jest o to jak ale po są przez",
    "pt": "o a os as de que e em um uma não é do da no na com para se",
    "ro": "de și în a la cu că nu este o un pe care din mai să sunt",
    "ru": "и в не на что с он она я это как по из но за то у к",
    "sv": "och att det är en på som för av inte med den till han jag ett har",
    "tr": "bir ve bu da de için çok ne ile o ama gibi daha var değil",
    "uk": "і в не на що з він вона я це як за до та у але є",
}
SCRIPTS = {
    "ar": "\u0600-\u06ff", "el": "\u0370-\u03ff", "he": "\u0590-\u05ff", "hi": "\u0900-\u097f",
    "ja": "\u3040-\u30ff", "ko": "\uac00-\ud7af", "th": "\u0e00-\u0e7f", "zh": "\u4e00-\u9fff",
}  # fmt: skip
LEAST = 0.08  # of the words or letters, in a text that is in a language
CLEAR = 5  # times as many as of the other language
FEWEST = 8  # words or letters that are counted: less is no evidence
ENOUGH = 1_000  # lines that are looked at


def language_of(lines: Iterable[str], one: str, other: str) -> str:
    """The one of two languages that a text is in; "" where that is not clear.

    Example:
        >>> text = ["the dog is on the street", "a man with a dog", "this is for the children"]
        >>> language_of(text, "en", "de"), language_of(text, "de", "fr")
        ('en', '')
    """
    codes = [main_code(one), main_code(other)]
    if codes[0] == codes[1] or not all(code in FREQUENT or code in SCRIPTS for code in codes):
        return ""
    text = "\n".join(islice(lines, ENOUGH)).lower()
    counts = [_count(text, code, rival) for code, rival in (codes, codes[::-1])]
    shares = [found / total if total else 0.0 for found, total in counts]
    for i, language in enumerate((one, other)):
        if counts[i][0] >= FEWEST and shares[i] >= max(LEAST, CLEAR * shares[1 - i]):
            return language
    return ""


def warn_of_target(lines: Iterable[str], languages: Sequence[str], name: object) -> None:
    """Warn if text to translate is in the language that a model translates into."""
    source, target = languages
    if target and language_of(lines, source, target) == target:
        said = language_name(target)
        warnings.warn(
            f"{name} looks like {said} already, and the model translates {language_name(source)} "
            f"into {said}: is it the right text, and the right model?",
            stacklevel=2,
        )


def _count(text: str, language: str, rival: str) -> tuple[int, int]:
    """How many of the words or letters are of a language, and their number; no words of both."""
    if language in SCRIPTS:
        letters = "".join(text.split())
        return len(re.findall(f"[{SCRIPTS[language]}]", letters)), len(letters)
    own = {*FREQUENT[language].split()} - {*FREQUENT.get(rival, "").split()}
    words = re.findall(r"\w+", text)
    return sum(word in own for word in words), len(words)
