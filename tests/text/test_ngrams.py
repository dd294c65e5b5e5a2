"""N-gram models: by a plain implementation over dictionaries, and by KenLM if it is installed."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from oaxe.search.ngrams import LanguageModel
from oaxe.support.errors import UserError
from oaxe.text.corpus import Sentences
from oaxe.text.ngram_files import check_subwords, load_ngrams, read_arpa, save_ngrams, write_arpa
from oaxe.text.ngrams import estimate
from oaxe.text.subwords import Subwords, train_subwords
from oaxe.text.symbols import BOS, EOS, SYMBOLS, UNK

VOCAB = 14
Text = list[list[int]]
LogProb = Callable[[list[int], int], float]


def random_text(n: int = 200, vocab: int = VOCAB) -> Text:
    """Some words are frequent, and some follow each other; the last one never occurs."""
    rng = np.random.default_rng(3)
    text = []
    for _ in range(n):
        sentence = [int(rng.integers(7, vocab - 1))]
        while len(sentence) < rng.integers(1, 9):
            last = sentence[-1]
            near = 7 + (last - 6) % (vocab - 8)
            sentence.append(near if rng.random() < 0.6 else int(rng.integers(7, vocab - 1)))
        text.append(sentence)
    return [*text, []]


def sentences(text: Text) -> Sentences:
    tokens = np.array([word for sentence in text for word in sentence], np.uint16)
    return Sentences(tokens, np.cumsum([0, *map(len, text)]))


def plain_model(text: Text, order: int, limits: list[int], vocab: int = VOCAB) -> LogProb:
    """Modified Kneser-Ney, one n-gram at a time."""
    raw: dict[int, Counter[tuple[int, ...]]] = {n: Counter() for n in range(1, order + 1)}
    for sentence in text:
        words = [BOS, *sentence, EOS]
        for n in raw:
            raw[n].update(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    counts: dict[int, dict[tuple[int, ...], int]] = {order: dict(raw[order])}
    for n in range(1, order):
        in_front = defaultdict(set)
        for gram in raw[n + 1]:
            in_front[gram[1:]].add(gram[0])
        counts[n] = {g: raw[n][g] if g[0] == BOS else len(in_front[g]) for g in raw[n]}
    counts[1].pop((BOS,))
    discounts, estimated = {}, set()
    for n, of in counts.items():
        t = [sum(c == k for c in of.values()) for k in range(5)]
        discounts[n] = [0.0, 0.5, 1.0, 1.5]
        if all(t[1:]):
            y = t[1] / (t[1] + 2 * t[2])
            found = [k - (k + 1) * y * t[k + 1] / t[k] for k in (1, 2, 3)]
            if all(discount > 0 for discount in found):
                discounts[n] = [0.0, *found]
                estimated.add(n)
    assert order < 3 or estimated
    n_types = vocab - len(SYMBOLS) + 2

    def probability(context: tuple[int, ...], word: int) -> float:
        n = len(context) + 1
        lower = probability(context[1:], word) if context else 1 / n_types
        of = {g: c for g, c in counts[n].items() if g[:-1] == context}
        if not of:
            return lower
        limit = limits[n - 1] if n > 1 else 0
        kept = {g: c for g, c in of.items() if raw[n][g] > limit}
        share = {g: (c - discounts[n][min(c, 3)]) / sum(of.values()) for g, c in kept.items()}
        return share.get((*context, word), 0.0) + (1 - sum(share.values())) * lower

    def log_prob(before: list[int], word: int) -> float:
        context = tuple([BOS, *before][-(order - 1) :] if order > 1 else [])
        return math.log(probability(context, word))

    return log_prob


def log_prob_of(lm: LanguageModel, before: list[int], word: int) -> float:
    context = ([BOS] * lm.order + before)[len(before) + 1 :]
    return lm.log_prob(torch.tensor([context]).long().view(1, -1), torch.tensor([word])).item()


@pytest.mark.parametrize(
    ("order", "prune", "limits"),
    [(1, [], [0]), (2, [], [0, 0]), (4, [], [0] * 4), (3, [0, 0, 1], [0, 0, 1]),
     (4, [1, 2], [1, 2, 2, 2])],
)  # fmt: skip
def test_equals_a_plain_implementation(order: int, prune: list[int], limits: list[int]) -> None:
    text = random_text()
    lm = LanguageModel(estimate(sentences(text), VOCAB, order, prune))
    expected = plain_model(text, order, limits)
    asked = 0
    for sentence in [*text[:6], [13, 13, 7, 9], [8, 13, 8, 9, 10, 11, 12]]:
        for i in range(len(sentence) + 1):
            for word in (EOS, UNK, 7, 9, 13):
                found = log_prob_of(lm, sentence[:i], word)
                assert found == pytest.approx(expected(sentence[:i], word), rel=1e-5)
                asked += 1
    assert asked > 100


@pytest.mark.parametrize("prune", [[], [0, 1]])
def test_words_after_a_context_are_certain_together(prune: list[int]) -> None:
    lm = LanguageModel(estimate(sentences(random_text()), VOCAB, 3, prune))
    words = torch.tensor([EOS, UNK, *range(7, VOCAB)])
    for context in ([BOS, BOS], [BOS, 8], [8, 9], [13, 9], [9, 13], [12, 12]):
        contexts = torch.tensor(context).expand(len(words), -1)
        assert lm.log_prob(contexts, words).exp().sum().item() == pytest.approx(1.0, rel=1e-5)


def test_many_at_once_and_contexts_that_go_on() -> None:
    lm = LanguageModel(estimate(sentences(random_text()), VOCAB, 3))
    words = torch.randint(7, VOCAB, (4, 2, 5))
    context = lm.begin(words[..., 0])
    before = [[[] for _ in range(2)] for _ in range(4)]  # type: list[list[list[int]]]
    for i in range(5):
        found = lm.log_prob(context, words[..., i])
        for b in range(4):
            for k in range(2):
                word = int(words[b, k, i])
                expected = log_prob_of(lm, before[b][k], word)
                assert found[b, k].item() == pytest.approx(expected, rel=1e-5)
                before[b][k].append(word)
        context = lm.after(context, words[..., i])
    assert lm.end(context)[1, 1].item() == pytest.approx(log_prob_of(lm, before[1][1], EOS))


@pytest.fixture(scope="module")
def subwords(tmp_path_factory: pytest.TempPathFactory) -> Subwords:
    lines = ["a small dog runs", "two men", "the old dog sleeps in a boat near the water"] * 2
    return train_subwords(lines, tmp_path_factory.mktemp("subwords") / "subwords.model", 45)


def test_folders_and_arpa_files_hold_the_same(subwords: Subwords, tmp_path: Path) -> None:
    text = random_text(vocab=subwords.vocab_size)
    ngrams = estimate(sentences(text), subwords.vocab_size, 3)
    save_ngrams(tmp_path / "lm", ngrams, subwords)
    write_arpa(tmp_path / "lm.arpa", ngrams, subwords)
    check_subwords(tmp_path / "lm", subwords)
    models = [LanguageModel(of) for of in (
        ngrams, load_ngrams(tmp_path / "lm"), read_arpa(tmp_path / "lm.arpa", subwords)
    )]  # fmt: skip
    for sentence in text[:5]:
        for i, word in enumerate([*sentence, EOS]):
            first, *others = (log_prob_of(lm, sentence[:i], word) for lm in models)
            assert others == pytest.approx([first, first], rel=1e-5)


def test_kenlm_reads_the_same(subwords: Subwords, tmp_path: Path) -> None:
    kenlm = pytest.importorskip("kenlm")
    text = random_text(vocab=subwords.vocab_size)
    ngrams = estimate(sentences(text), subwords.vocab_size, 4)
    write_arpa(tmp_path / "lm.arpa", ngrams, subwords)
    theirs, ours = kenlm.Model(str(tmp_path / "lm.arpa")), LanguageModel(ngrams)
    for sentence in text[:20]:
        pieces = " ".join(subwords.piece(word) for word in sentence)
        found = sum(log_prob_of(ours, sentence[:i], w) for i, w in enumerate([*sentence, EOS]))
        assert theirs.score(pieces, bos=True, eos=True) * math.log(10) == pytest.approx(found, 1e-4)


def test_arpa_files_of_others(subwords: Subwords, tmp_path: Path) -> None:
    """Words that are no subwords are left out; subwords that are missing are unknown."""
    piece = subwords.piece(8)
    path = tmp_path / "lm.arpa"
    path.write_text(
        "\\data\\\nngram 1=5\nngram 2=2\n\n\\1-grams:\n-1\t<unk>\n-99\t<s>\t-0.5\n-2\t</s>\n"
        f"-0.5\t{piece}\t-0.25\n-1\tXYZ\n\n\\2-grams:\n-0.1\t<s> {piece}\n-0.2\tXYZ {piece}\n\n"
        "\\end\\\n"
    )
    lm = LanguageModel(read_arpa(path, subwords))
    asked = [([], 8, -0.1), ([], 9, -1.5), ([8], EOS, -2.25), ([9], 8, -0.5)]
    for before, word, expected in asked:
        assert log_prob_of(lm, before, word) == pytest.approx(expected * math.log(10))


def test_files_that_are_wrong(subwords: Subwords, tmp_path: Path) -> None:
    path = tmp_path / "lm.arpa"
    for content, message in [
        ("\\1-grams:\n-1\tX\n-1\tY\n-1\t<s>\n", "2 of the 3 words .* are no subwords"),
        ("\\1-grams:\nabc\t<s>\n", "is not an ARPA file: could not convert"),
        ("\\1-grams:\n-1\t<s> <s>\n", "is no n-gram of order 1"),
        ("hello\n", "is not an ARPA file"),
    ]:
        path.write_text(content)
        with pytest.raises(UserError, match=message):
            read_arpa(path, subwords)
    for content in ("", "[" * 100_000):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(UserError, match="holds no n-grams; make some with 'oaxe ngrams"):
            load_ngrams(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(UserError, match="holds no n-grams; make some with 'oaxe ngrams"):
        load_ngrams(tmp_path)
    ngrams = estimate(sentences(random_text(9)), VOCAB, 2)
    save_ngrams(tmp_path / "lm", ngrams, subwords)
    file = tmp_path / "lm" / "ngrams.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(UserError, match="is damaged"):
        load_ngrams(tmp_path / "lm")
    other = train_subwords(["a dog runs over here"] * 3, tmp_path / "other.model", 24)
    with pytest.raises(UserError, match="of other subwords than the model"):
        check_subwords(tmp_path / "lm", other)


@pytest.mark.parametrize(
    ("order", "prune", "message"),
    [(0, [], "from 1 to 8, got 0"), (3, [0, 2, 1], "must not fall"), (2, [-1], "must not fall")],
)
def test_rejects_orders_and_limits(order: int, prune: list[int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        estimate(sentences([[7]]), VOCAB, order, prune)


def test_hardly_any_text() -> None:
    lm = LanguageModel(estimate(sentences([[7]]), VOCAB, 4, [0, 5]))
    assert lm.order == 1  # all others are left out
    assert math.isfinite(log_prob_of(lm, [7, 8], 9))
    with pytest.raises(UserError, match="no text"):
        estimate(sentences([]), VOCAB, 2)
