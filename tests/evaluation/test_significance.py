"""p-values against all exchanges of sentences."""

from collections.abc import Sequence
from itertools import product

import pytest
import sacrebleu

from oaxe.evaluation.significance import paired_test
from tests.evaluation.samples import near, references_of, sentences


def test_p_values_against_all_exchanges() -> None:
    """Approximate randomisation samples from the 2^n ways to exchange outputs; these are all."""
    reference = sentences(14, 8)
    a, b = near(reference, 15, 0.35), near(reference, 16, 0.1)
    references = references_of([[line] for line in reference])

    def score(output: Sequence[str]) -> float:
        return float(sacrebleu.corpus_bleu(list(output), [reference]).score)

    seen = abs(score(a) - score(b))
    differences = []
    for swaps in product((False, True), repeat=8):
        pairs = [(y, x) if s else (x, y) for x, y, s in zip(a, b, swaps, strict=True)]
        first, second = zip(*pairs, strict=True)
        differences.append(abs(score(first) - score(second)))
    exact = sum(d > seen + 1e-9 for d in differences) / len(differences)
    assert 0.001 < exact < 0.5
    found = paired_test(references, {"a": a, "b": b}, "a", trials=4000)["b"]
    assert found["bleu"]["p"] == pytest.approx(exact, abs=0.03)
    assert found["bleu"]["difference"] == pytest.approx(score(b) - score(a))
    assert "ar:4000|seed:12345" in found["bleu"]["signature"]
    again = paired_test(references, {"a": a, "b": b}, "a", trials=4000)["b"]
    assert again == found
    other = paired_test(references, {"a": a, "b": b}, "a", test="bs", trials=300)["b"]
    assert "bs:300" in other["chrf"]["signature"]
    assert 0 < other["chrf"]["p"] <= 1


def test_equal_outputs_do_not_differ() -> None:
    reference = sentences(17, 10)
    output = near(reference, 18)
    references = references_of([[line] for line in reference])
    found = paired_test(references, {"a": output, "b": list(output)}, "a", trials=50)
    assert found["b"]["bleu"]["p"] == 1
    assert found["b"]["bleu"]["difference"] == 0
    assert paired_test(references, {"a": output}, "a") == {}
    found = paired_test(references, {"a": ["x"] * 10, "b": ["y"] * 10}, "a", trials=50)
    assert (found["b"]["bleu"]["difference"], found["b"]["bleu"]["p"]) == (0, 1)  # both have 0
