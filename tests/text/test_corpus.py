import json
from pathlib import Path

import numpy as np
import pytest

from oaxe.support.errors import UserError
from oaxe.text.corpus import Corpus, Sentences, load_subwords
from oaxe.text.manifest import read_manifest
from oaxe.text.prepare import prepare
from oaxe.text.subwords import Subwords
from oaxe.text.symbols import EOS

SOURCES = [f"{'a' * (i % 7 + 1)} b{i % 10} c" for i in range(60)]
TARGETS = [f"{'x' * (i % 3 + 1)} y{i % 10}\u2028z" for i in range(60)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pairs = []
    for name, count in (("train", 60), ("valid", 9)):
        paths = tmp_path / f"{name}.s", tmp_path / f"{name}.t"
        for path, lines in zip(paths, (SOURCES, TARGETS), strict=True):
            path.write_text("".join(f"{line}\n" for line in lines[:count]), encoding="utf-8")
        pairs.append(paths)
    out = tmp_path / "out"
    prepare(
        out,
        source_language="aa",
        target_language="bb",
        train=pairs[0],
        valid=pairs[1],
        vocab_size=40,
    )
    return out


def test_sentences_are_the_token_ids_of_their_lines(folder: Path) -> None:
    corpus = Corpus.open(folder, "train")
    subwords = load_subwords(folder)
    assert len(corpus) == 60
    for i, (source, target) in enumerate(
        zip(subwords.encode(SOURCES), subwords.encode(TARGETS), strict=True)
    ):
        assert corpus.sources[i].tolist() == source
        assert corpus.targets[i].tolist() == target
        assert (corpus.source_lengths[i], corpus.target_lengths[i]) == (len(source), len(target))
    with pytest.raises(IndexError):
        corpus.sources[60]


def test_valid_keeps_its_text(folder: Path) -> None:
    corpus = Corpus.open(folder, "valid")
    assert corpus.sources_text == SOURCES[:9]
    assert corpus.targets_text == TARGETS[:9]
    with pytest.raises(UserError, match="keeps no text"):
        _ = Corpus.open(folder, "train").sources_text


def test_arrays_are_mapped_and_cannot_be_written(folder: Path) -> None:
    corpus = Corpus.open(folder, "train")
    assert isinstance(corpus.sources.tokens.base, np.memmap)
    assert corpus.sources.tokens.dtype == np.uint16
    with pytest.raises(ValueError, match="read-only"):
        corpus.sources[0][0] = 1


def test_one_flipped_bit_is_found_in_every_file(folder: Path) -> None:
    names = [name for name in read_manifest(folder).files if not name.startswith("train")]
    assert len(names) == 7
    for name in names:
        path = folder / name
        good = path.read_bytes()
        for position in {0, len(good) // 2, len(good) - 1}:
            bad = bytearray(good)
            bad[position] ^= 4
            path.write_bytes(bad)
            with pytest.raises(UserError, match=f"{name} is damaged"):
                Corpus.open(folder, "valid")
        path.write_bytes(good[:-1])
        with pytest.raises(UserError, match=f"{name} is damaged"):
            Corpus.open(folder, "valid", verify=False)
        path.unlink()
        with pytest.raises(UserError, match=f"{name} is missing"):
            Corpus.open(folder, "valid", verify=False)
        path.write_bytes(good)
    Corpus.open(folder, "valid")


def test_foreign_subwords_are_refused(folder: Path) -> None:
    """Of the same size in bytes and pieces: the checksum alone tells them apart."""
    own = load_subwords(folder)
    swapped = own.model.replace(b"y1", b"??").replace(b"y2", b"y1").replace(b"??", b"y2")
    assert len(swapped) == len(own.model)
    assert swapped != own.model
    (folder / "subwords.model").write_bytes(swapped)
    assert Subwords.load(folder / "subwords.model").vocab_size == own.vocab_size
    message = r"subwords\.model is damaged: .* instead of .*; run 'oaxe prepare' again"
    with pytest.raises(UserError, match=message):
        load_subwords(folder)
    for split in ("train", "valid"):
        with pytest.raises(UserError, match=message):
            Corpus.open(folder, split)


def test_counts_must_agree_with_the_manifest(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["splits"]["train"]["pairs"] += 1
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"60 sentences.*manifest says 61"):
        Corpus.open(folder, "train")


def test_missing_splits_and_folders_are_named(folder: Path) -> None:
    with pytest.raises(UserError, match=r"no split 'test', only train, valid.*oaxe prepare"):
        Corpus.open(folder, "test")
    with pytest.raises(UserError, match=r"is no folder with a manifest\.json.*oaxe prepare"):
        Corpus.open(folder / "elsewhere", "train")
    (folder / "manifest.json").unlink()
    with pytest.raises(UserError, match="not finished"):
        Corpus.open(folder, "train")


def test_corpus_in_memory() -> None:
    side = Sentences(np.arange(7, 12), np.array([0, 2, 5]))
    corpus = Corpus(side, side)
    assert len(corpus) == 2
    assert corpus.sources[1].tolist() == corpus.targets[-1].tolist() == [9, 10, 11]
    with pytest.raises(UserError, match="keeps no text"):
        _ = corpus.targets_text


def corpus_of(pairs: dict[int, list[int]]) -> Corpus:
    def sentences(rows: list[list[int]]) -> Sentences:
        offsets = np.cumsum([0, *map(len, rows)])
        return Sentences(np.array([x for row in rows for x in row], dtype=np.uint16), offsets)

    return Corpus(sentences([[source] for source in pairs]), sentences([*pairs.values()]))


def test_references_follow_each_other() -> None:
    corpus = corpus_of({7: [8, 9], 8: [10], 9: [11]})
    others = [corpus_of({9: [12, 13], 7: [14]}), corpus_of({7: [15, 16]})]
    joined = corpus.with_references(others)
    expected = [[8, 9, EOS, 14, EOS, 15, 16], [10], [11, EOS, 12, 13]]
    assert [target.tolist() for target in joined.targets] == expected
    assert [source.tolist() for source in joined.sources] == [[7], [8], [9]]
    assert joined.target_lengths.tolist() == [7, 1, 4]
    assert joined.targets.tokens.dtype == np.uint16
    assert corpus.with_references([]) is corpus
    with pytest.raises(UserError, match="has none of the sources"):
        corpus.with_references([corpus_of({10: [8]})])
