"""Language codes, and what depends on them: the tokenizer of BLEU, words, which model fits."""

import re
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from oaxe.support.errors import UserError

# sacreBLEU's tokenizers; every other language has mteval's 13a.
TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "char", "th": "char"}
UNSPACED = {"ja", "th", "zh"}
NAMES = {
    "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "ca": "Catalan", "cs": "Czech",
    "da": "Danish", "de": "German", "el": "Greek", "en": "English", "es": "Spanish",
    "et": "Estonian", "fa": "Persian", "fi": "Finnish", "fr": "French", "ga": "Irish",
    "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "id": "Indonesian",
    "is": "Icelandic", "it": "Italian", "ja": "Japanese", "ko": "Korean", "lt": "Lithuanian",
    "lv": "Latvian", "ms": "Malay", "nb": "Norwegian", "nl": "Dutch", "no": "Norwegian",
    "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sk": "Slovak",
    "sl": "Slovenian", "sq": "Albanian", "sr": "Serbian", "sv": "Swedish", "ta": "Tamil",
    "th": "Thai", "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu", "vi": "Vietnamese",
    "zh": "Chinese",
}  # fmt: skip
TWO_LETTERS = {"jpn": "ja", "kor": "ko", "tha": "th", "zho": "zh", "chi": "zh", "cmn": "zh"}
UNSPACED_SCRIPTS = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff]")


def check_code(language: str) -> None:
    """Raises UserError for a name that is no code, such as ``german``."""
    if not re.fullmatch(r"([a-z]{2,3}|x(?=[-_]))([-_][a-z0-9]+)*", language, re.IGNORECASE):
        raise UserError(
            f"the language {language!r} is no code of two or three letters; give one such as de, "
            "zh-CN with a region, or x-name for a language without a code"
        )


def check_direction(model: str, its: Sequence[str], text: Path, texts: Sequence[str]) -> None:
    """Raises UserError if a model is for other languages than a text, or for the other direction.

    Args:
        its, texts: source and target language; "" is not known and fits. Regions do not count.
    """
    if not all(map(is_language, its, texts)):
        raise UserError(
            f"{model} translates {its[0]} to {its[1]}, but {text} is "
            f"{' to '.join(name or '?' for name in texts)}; give a model for these languages, "
            "in this direction, or the text that it is for"
        )


def language_name(language: str) -> str:
    """The English name of a language, or its code if we have none.

    Example:
        >>> language_name("de"), language_name("zh-TW"), language_name("x-elvish")
        ('German', 'Chinese (zh-TW)', 'x-elvish')
    """
    name = NAMES.get(main_code(language))
    if name is None:
        return language
    return name if language.lower() == main_code(language) else f"{name} ({language})"


def is_language(code: str, wanted: str) -> bool:
    """Whether two codes are of one language, up to the region; "" is unknown and fits any.

    Example:
        >>> is_language("en", "en-GB"), is_language("", "en"), is_language("de", "en")
        (True, True, False)
    """
    return not code or not wanted or main_code(code) == main_code(wanted)


def language_in_name(path: Path, known: Sequence[str]) -> str:
    """Which of the known languages a file is named after, or "".

    Example:
        >>> names = [Path("train.en.xz"), Path("valid-de.txt"), Path("de.txt"), Path("test.txt")]
        >>> [language_in_name(name, ("en", "de")) for name in names]
        ['en', 'de', 'de', '']
    """
    stem, *ends = path.name.split(".")
    words = [re.split("[-_]", stem)[-1], *ends]
    return next((word for word in reversed(words) if word in known), "")


def bleu_tokenizer(language: str) -> str:
    """The name of sacreBLEU's tokenizer for a language such as ``de`` or ``zh-CN``.

    Japanese is split by MeCab where it is installed (``pip install "sacrebleu[ja]"``), otherwise
    into characters: two scores that cannot be compared, so look at the signature.
    """
    name = TOKENIZERS.get(main_code(language), "13a")
    if name == "ja-mecab" and not (find_spec("MeCab") and find_spec("ipadic")):
        return "char"
    return name


def is_unspaced(texts: Iterable[str]) -> bool:
    """Whether most of the text is in a script without spaces: Chinese, Japanese or Thai.

    Example:
        >>> is_unspaced(["小さい犬"]), is_unspaced(["a small dog"])
        (True, False)
    """
    text = "".join("".join(texts).split())
    return len(UNSPACED_SCRIPTS.findall(text)) > len(text) / 2


def is_unspaced_language(language: str) -> bool:
    """Whether a language is written without spaces between words and sentences."""
    return main_code(language) in UNSPACED


def unit(language: str) -> str:
    """What :func:`words` returns: words or characters."""
    return "characters" if is_unspaced_language(language) else "words"


def words(text: str, language: str) -> list[str]:
    """The words between spaces, or the characters of a language that is written without spaces.

    Example:
        >>> words("a  small dog.", "en"), words("小 犬", "ja")
        (['a', 'small', 'dog.'], ['小', '犬'])
    """
    found = text.split()
    return list("".join(found)) if unit(language) == "characters" else found


def joined(words: Iterable[str], language: str) -> str:
    """The words as a text again."""
    return ("" if unit(language) == "characters" else " ").join(words)


def main_code(language: str) -> str:
    """A code of two letters, where there is one, without the region.

    Example:
        >>> main_code("zh-TW"), main_code("jpn")
        ('zh', 'ja')
    """
    code = re.split("[-_]", language.lower())[0]
    return TWO_LETTERS.get(code, code)
