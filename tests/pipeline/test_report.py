"""Which model a report recommends."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from oaxe.pipeline.report import (
    CTRANSLATE,
    ENGINE,
    ENGINE_BEAM,
    ONE_PASS,
    ONE_PASS_BEAM,
    TEACHER,
    TEACHER_BEAM,
    Scores,
    recommend,
    unfair,
    use,
)


def scores(
    one_pass: float, beam: float, *, latency: float = 10.0, throughput: float = 300.0
) -> dict[str, Scores]:
    """A teacher of 29 and 30 BLEU, 50 ms and 100 sentences a second if it is greedy."""

    def of(valid: float, ms: float, a_second: float, **options: int) -> Scores:
        return Scores("out/x", "s", 1, "somehow", options, valid, None, ms, a_second)

    return {
        TEACHER: of(29.0, 50.0, 100.0, beam=1),
        TEACHER_BEAM: of(30.0, 150.0, 40.0, beam=5),
        ONE_PASS: of(one_pass, latency, throughput),
        ONE_PASS_BEAM: of(beam, 3 * latency, throughput / 6, beam=20),
    }


@pytest.mark.parametrize(
    ("found", "name", "words"),
    [
        (scores(31.0, 30.0), ONE_PASS, "1.0 BLEU above .* 5.0 times .* and 3.0 times in batches"),
        (scores(29.1, 32.0), ONE_PASS_BEAM, "2.0 BLEU above .* One pass takes 0.33 .* 2.9 BLEU le"),
        (scores(29.6, 30.0), ONE_PASS, "0.4 BLEU below .* in batches of 64.$"),
        (scores(28.9, 29.5), ONE_PASS_BEAM, "pays: one pass, beam and n-grams is 0.5 BLEU below"),
        (scores(28.9, 28.0), TEACHER_BEAM, "does not pay here: one pass is 1.1 BLEU below .*; one"),
        (scores(33.0, 33.0, latency=60, throughput=90), ONE_PASS, "2.5 times as fast as its beam"),
        (scores(29.4, 29.4, latency=60, throughput=90), TEACHER_BEAM, "one pass is slower: 0.8 ti"),
        (scores(33.0, 33.0, latency=160, throughput=30), TEACHER_BEAM, "one pass is slower: 0.3 t"),
        (scores(33.0, 33.0, latency=60), ONE_PASS, "0.8 times as fast .* and 3.0 times in batches"),
    ],
)
def test_recommendation(found: dict[str, Scores], name: str, words: str) -> None:
    advised, why = recommend(found)
    assert advised == name
    assert re.search(words, why), why


def test_one_pass_is_compared_with_the_fastest_search() -> None:
    found = scores(31.0, 30.0)
    assert "as its greedy search here one" in recommend(found)[1]
    greedy, beam = CTRANSLATE
    found[greedy] = replace(found[TEACHER], latency_ms=8.0, sentences_per_second=900.0)
    found[beam] = replace(found[TEACHER_BEAM], latency_ms=12.0, sentences_per_second=400.0)
    advised, why = recommend(found)
    assert advised == ONE_PASS
    assert "1.2 times as fast as its beam search by CTranslate2 one" in why
    assert "0.8 times in batches of 64. Greedy search is faster, with 2.0 BLEU less" in why
    found[beam] = replace(found[beam], latency_ms=9.0)
    advised, why = recommend(found)
    assert advised == TEACHER_BEAM
    assert "one pass is slower: 0.8 times as fast as its greedy search by CTranslate2" in why
    assert "0.3 times in batches" in why


def test_the_exported_model_is_recommended_first() -> None:
    found = scores(31.0, 30.0)
    found[ENGINE] = replace(found[ONE_PASS], valid=30.9, latency_ms=5.0)
    advised, why = recommend(found)
    assert advised == ENGINE
    assert "0.9 BLEU above" in why
    assert "10.0 times as fast" in why
    found[ENGINE_BEAM] = replace(found[ENGINE], valid=33.0, latency_ms=6.0)
    advised, why = recommend(found)
    assert advised == ENGINE_BEAM
    assert "One pass, 8 bits for a CPU takes 0.83 of its time, with 2.1 BLEU less" in why
    found[ENGINE] = found[ENGINE_BEAM] = replace(found[ENGINE], valid=20.0)  # rounding hurt
    assert recommend(found)[0] == ONE_PASS


def test_a_faster_search_that_was_not_measured_is_named() -> None:
    found = scores(31.0, 30.0)
    assert unfair(found, Path("out")) == []  # on a GPU there is no other
    found[ENGINE] = found[ONE_PASS]
    assert 'pip install "oaxe[ctranslate2]"' in unfair(found, Path("out"))[0]
    found[next(iter(CTRANSLATE))] = found[TEACHER]
    assert unfair(found, Path("out")) == []


def test_models_that_learned_nothing() -> None:
    found = {name: Scores("x", "s", 1, "", {}, 2.0, None, 1.0, 1.0) for name in scores(1, 1)}
    found[ONE_PASS_BEAM] = replace(found[ONE_PASS_BEAM], valid=4.0)
    advised, why = recommend(found)
    assert advised == ONE_PASS_BEAM  # the only one that is nearly as good as the best
    assert "Too little was learned" in why
    found[ONE_PASS] = replace(found[ONE_PASS], valid=20.0, latency_ms=0.5)  # unlike its teacher
    assert recommend(found)[0] == ONE_PASS


def test_the_command_has_the_options_of_decoding() -> None:
    found = scores(1, 1)
    assert use(TEACHER_BEAM, found) == "Use it with: `oaxe translate --model out/x --set beam=5`"
    assert use(ONE_PASS, found).endswith("--model out/x`")
