"""BLEU against plain counting."""

import pytest

from oaxe.evaluation.bleu import bleu, bleu_by_length, single_reference_bleu
from tests.evaluation.samples import WORDS, near, plain_bleu, references_of, sentences


@pytest.mark.parametrize("ragged", [False, True])
def test_several_references(ragged: bool) -> None:
    first = sentences(5, 30)
    others = [near(first, seed, 0.3) for seed in (6, 7)]
    texts = [list(refs) for refs in zip(first, *others, strict=True)]
    if ragged:
        texts = [refs[: 1 + i % 3] for i, refs in enumerate(texts)]
    output, references = near(first, 8), references_of(texts)
    found = bleu(references, output)
    assert found["score"] == pytest.approx(plain_bleu(output, texts))
    assert found["signature"].startswith(f"nrefs:{'var' if ragged else '3'}|")
    single = single_reference_bleu(references, output)
    expected = [plain_bleu(output, [[refs[k % len(refs)]] for refs in texts]) for k in range(3)]
    assert single["scores"] == pytest.approx(expected)
    assert single["mean"] == pytest.approx(sum(expected) / 3)
    assert single["mean"] < found["score"] - 1


def test_buckets_of_length() -> None:
    reference = sentences(12, 90, 4, 60)
    reference[0], reference[1] = " ".join(WORDS[:10]), " ".join(WORDS[:11])
    output = near(reference, 13)
    found = bleu_by_length(references_of([[r] for r in reference]), output)
    assert [b["label"] for b in found] == [
        "up to 10", "11-20", "21-30", "31-40", "41-50", "over 50",
    ]  # fmt: skip
    edges = [(0, 10), (11, 20), (21, 30), (31, 40), (41, 50), (51, 999)]
    for bucket, (least, most) in zip(found, edges, strict=True):
        inside = [i for i, r in enumerate(reference) if least <= len(r.split()) <= most]
        assert (bucket["least"], bucket["most"]) == (least, None if most == 999 else most)
        assert bucket["sentences"] == len(inside) > 0
        expected = plain_bleu([output[i] for i in inside], [[reference[i]] for i in inside])
        assert bucket["bleu"] == pytest.approx(expected)


def test_empty_bucket_has_no_bleu() -> None:
    short, long = bleu_by_length(references_of([["a b c d"]]), ["a b c d"], [2])
    assert (short["label"], short["sentences"], short["bleu"]) == ("up to 2", 0, None)
    assert (long["label"], long["sentences"]) == ("over 2", 1)
    assert long["bleu"] == pytest.approx(100)
