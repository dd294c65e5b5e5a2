from pathlib import Path

import pytest

from oaxe.support.errors import UserError
from oaxe.text.subwords import Subwords, train_subwords
from oaxe.text.symbols import BLANK, BOS, EOS, LENGTH, MASK, PAD, SYMBOLS, UNK
from tests.text.test_prepare import text


def test_names_of_symbols_in_text_are_ordinary_characters(tmp_path: Path) -> None:
    sentences = [*text(200, 1), "< > m a s k"]
    subwords = train_subwords(sentences, tmp_path / "m", 80)
    assert [subwords.piece(i) for i in range(7)] == [*SYMBOLS]
    (ids,) = subwords.encode(["<mask> haus"])
    assert min(ids) > LENGTH
    assert subwords.decode([ids]) == ["<mask> haus"]
    special = [PAD, BOS, EOS, UNK, MASK, BLANK, LENGTH]
    mixed = [s for pair in zip(ids, special * 9, strict=False) for s in pair]
    assert subwords.decode([mixed, special, []]) == ["<mask> haus", "", ""]
    assert UNK in subwords.encode(["Ж"])[0]


def test_rejects_foreign_subword_models(tmp_path: Path) -> None:
    from sentencepiece import SentencePieceTrainer

    with pytest.raises(UserError, match="cannot read the subword model"):
        Subwords.load(tmp_path / "none")
    for content in (b"", b"not a model"):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(UserError, match="bad is not a"):
            Subwords.load(tmp_path / "bad")
    SentencePieceTrainer.train(
        sentence_iterator=iter(text(200, 1)),
        model_prefix=str(tmp_path / "other"),
        vocab_size=60,
        model_type="bpe",
        minloglevel=2,
    )
    with pytest.raises(UserError, match="its first pieces are <unk>"):
        Subwords.load(tmp_path / "other.model")
