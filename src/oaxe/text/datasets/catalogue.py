"""The data sets that have a name: the paper's, and smaller ones to work with.

The paper's have its settings (section 4.1): 32K merges for English-German and English-Chinese, 40K
for English-Romanian. Our vocabulary counts characters and symbols as well as merges. The paper
names no settings for Japanese-English, and no validation sets: newstest2013, newsdev2016 and
newsdev2017 are those of the work that it follows.
"""

from dataclasses import dataclass, field

from oaxe.support.errors import UserError
from oaxe.text.manifest import SPLITS


@dataclass(frozen=True)
class Archive:
    """A tar or zip file of parallel text, and the two files in it, without their folders."""

    url: str
    members: tuple[str, str]  # in the order of the languages
    sha256: str | None = None  # None: not published; that of the first download is recorded


@dataclass(frozen=True)
class Entry:
    languages: tuple[str, str]
    pairs: str  # of training
    about: str
    licence: str
    origin: str  # a page to read
    archives: tuple[Archive, ...] = ()  # their texts in a row are train
    test_sets: dict[str, str] = field(default_factory=dict)  # split: name in sacreBLEU
    others: tuple[str, ...] = ()  # files with more references
    by_hand: str = ""  # what to do where nothing can be downloaded
    vocab_size: int = 32_000
    character_coverage: float = 1.0
    teacher: str = "base"  # size of the model to distill with
    names: dict[str, tuple[str, str]] | None = None  # see files; None: train.en and so on

    @property
    def files(self) -> dict[str, tuple[str, str]]:
        """The two files of each split, in the order of the languages; .gz or .xz may follow."""
        first, second = self.languages
        plain = {split: (f"{split}.{first}", f"{split}.{second}") for split in SPLITS}
        return self.names or plain


STATMT = "https://www.statmt.org"
CATALOGUE: dict[str, Entry] = {
    "multi30k-en-de": Entry(
        ("en", "de"),
        "29,000",
        "captions of pictures; small, easily over-fitted",
        "non-commercial research",
        "https://github.com/multi30k/dataset (task 1, raw text; test: 2016 Flickr)",
        vocab_size=8_000,
    ),
    "tatoeba-en-de": Entry(
        ("en", "de"),
        "193,001",
        "short sentences",
        "CC BY 2.0 FR",
        "https://tatoeba.org",
        others=("multiref.jsonl",),
        vocab_size=8_000,
    ),
    "tatoeba-en-ja": Entry(
        ("en", "ja"),
        "102,717",
        "short sentences; word orders that differ",
        "CC BY 2.0 FR",
        "https://tatoeba.org",
        others=("multiref.jsonl",),
        vocab_size=8_000,
        character_coverage=0.9995,
    ),
    "europarl-en-de": Entry(
        ("en", "de"),
        "300,000",
        "sentences as long as the paper's",
        "free with acknowledgement: © European Union, source: European Parliament",
        "https://www.statmt.org/europarl",
        vocab_size=16_000,
    ),
    "newstest-en-de": Entry(
        ("en", "de"),
        "none",
        "newstest2013 and newstest2014: the paper's validation and test text",
        "evaluation only",
        f"{STATMT}/wmt14",
        names={
            "valid": ("newstest2013.en", "newstest2013.de"),
            "test": ("newstest2014.en", "newstest2014.de"),
        },
    ),
    "ott2018-en-de": Entry(
        ("en", "de"),
        "none",
        "500 sentences of newstest2014 with ten more references",
        "CC BY-NC 4.0",
        "https://github.com/facebookresearch/analyzing-uncertainty-nmt",
        names={"test": ("src.en", "ref0.de")},
        others=tuple(f"ref{number}.de" for number in range(1, 11)),
    ),
    "wmt14-en-de": Entry(
        ("en", "de"),
        "4.5 million",
        "the paper's main task: Europarl v7, Common Crawl, News Commentary v9",
        "see origin",
        f"{STATMT}/wmt14/translation-task.html",
        archives=(
            Archive(
                f"{STATMT}/wmt13/training-parallel-europarl-v7.tgz",
                ("europarl-v7.de-en.en", "europarl-v7.de-en.de"),
            ),
            Archive(
                f"{STATMT}/wmt13/training-parallel-commoncrawl.tgz",
                ("commoncrawl.de-en.en", "commoncrawl.de-en.de"),
            ),
            Archive(
                f"{STATMT}/wmt14/training-parallel-nc-v9.tgz",
                ("news-commentary-v9.de-en.en", "news-commentary-v9.de-en.de"),
            ),
        ),
        test_sets={"valid": "wmt13", "test": "wmt14/full"},
        teacher="big",
    ),
    "wmt16-en-ro": Entry(
        ("en", "ro"),
        "0.6 million",
        "Europarl v8 and SETIMES v2",
        "see origin",
        f"{STATMT}/wmt16/translation-task.html",
        archives=(
            Archive(
                "https://data.statmt.org/wmt16/translation-task/training-parallel-ep-v8.tgz",
                ("europarl-v8.ro-en.en", "europarl-v8.ro-en.ro"),
            ),
            Archive(
                "https://object.pouta.csc.fi/OPUS-SETIMES/v2/moses/en-ro.txt.zip",
                ("SETIMES.en-ro.en", "SETIMES.en-ro.ro"),
            ),
        ),
        test_sets={"valid": "wmt16/dev", "test": "wmt16"},
        vocab_size=40_000,
    ),
    "wmt17-en-zh": Entry(
        ("en", "zh"),
        "20 million",
        "News Commentary v12, UN Parallel Corpus v1.0, CWMT",
        "see origin",
        f"{STATMT}/wmt17/translation-task.html",
        test_sets={"valid": "wmt17/dev", "test": "wmt17"},
        by_hand="its parts are behind forms: get the three that the page of origin names and put "
        "them, one after the other, into train.en and train.zh",
        character_coverage=0.9995,
        teacher="big",
    ),
    "wat17-ja-en": Entry(
        ("ja", "en"),
        "1.9 million",
        "ASPEC, abstracts of scientific papers: its first two sections",
        "research only; ask for it",
        "https://jipsti.jst.go.jp/aspec/",
        by_hand="ask for ASPEC-JE at the page of origin. The fields of its lines are separated by "
        "' ||| ', the last two are Japanese and English: train-1.txt and train-2.txt become "
        "train.ja and train.en, dev.txt valid.ja and valid.en, test.txt test.ja and test.en",
        character_coverage=0.9995,
    ),
}


def find(name: str) -> tuple[str, bool]:
    """The name in the catalogue, and whether it was given with swapped languages: wmt14-de-en."""
    if name in CATALOGUE:
        return name, False
    title, *languages = name.split("-")
    swapped = "-".join([title, *reversed(languages)])
    if swapped in CATALOGUE:
        return swapped, True
    raise UserError(f"there is no data set {name!r}; there are {', '.join(CATALOGUE)}")
