"""The translator: order, empty and over-long lines, batches, options and modes."""

import threading
from typing import Any

import pytest
import torch

from oaxe.decoding.translator import Translator, padded
from oaxe.search.batches import batches
from oaxe.search.hypothesis import Hypothesis
from oaxe.support.errors import UserError
from oaxe.systems import cmlm
from oaxe.text.subwords import Subwords
from oaxe.text.symbols import EOS, PAD
from tests.decoding.samples import KINDS, SENTENCES, translator
from tests.models import micro


@pytest.mark.parametrize("kind", KINDS)
def test_equals_one_sentence_at_a_time(kind: str, subwords: Subwords) -> None:
    ours = translator(subwords, kind)
    decoding = ours.decoding_with()
    expected = []
    for tokens in subwords.encode(SENTENCES):
        source = torch.tensor([[*tokens, EOS]])
        hypotheses = ours.system.translate(source, decoding)[0] if tokens else []
        expected.append([(subwords.decode([h.tokens])[0], h.score) for h in hypotheses])
    assert len({texts[0][0] for texts in expected if texts}) > 3
    for batch_tokens in (1, 100, 400, 10**6):
        scored = ours.translate_scored(SENTENCES, batch_tokens=batch_tokens)
        for found, wanted in zip(scored, expected, strict=True):
            if not wanted:
                assert [(t.text, t.length) for t in found] == [("", 0)]
                continue
            assert [t.text for t in found] == [text for text, _ in wanted]
            assert [t.score for t in found] == pytest.approx([s for _, s in wanted], abs=1e-4)
    assert ours.translate(SENTENCES) == [t[0][0] if t else "" for t in expected]
    assert ours.translate(SENTENCES[::-1]) == ours.translate(SENTENCES)[::-1]


def test_paragraphs(subwords: Subwords) -> None:
    """Every sentence by itself; blank texts and line breaks stay."""
    ours = translator(subwords)
    one, two, three = ours.translate(["a small dog runs!", "Two men", "rain"])
    assert one
    texts = ["a small dog runs! Two men\n\n rain", "", "rain"]
    assert ours.translate_paragraphs(texts) == [f"{one} {two}\n\n {three}", "", three]
    with pytest.raises(UserError, match="got one string"):
        ours.translate_paragraphs("rain")
    with pytest.warns(UserWarning, match="has a line break; .* translate_paragraphs"):
        ours.translate([texts[0]])
    with pytest.warns(UserWarning, match=r"line 7 \(\d+\)\. "):
        ours.translate(["rain", "rain " * 50], first_line=[3, 7])


def test_nothing_and_empty_lines(subwords: Subwords) -> None:
    ours = translator(subwords)
    assert ours.translate([]) == []
    assert ours.translate(["", " ", "\n"]) == ["", "", ""]


def test_long_lines_are_cut_and_named(subwords: Subwords) -> None:
    ours = translator(subwords, max_length=6)
    with pytest.warns(UserWarning, match=r"cut after 6 subwords.*line 11 \(\d+\), line 14 \(\d+\)"):
        found = ours.translate(SENTENCES, first_line=11)
    tokens = subwords.encode(SENTENCES[:1])[0][:6]
    (cut,) = ours.system.translate(torch.tensor([[*tokens, EOS]]), ours.decoding_with())
    assert found[0] == subwords.decode([cut[0].tokens])[0]
    with pytest.warns(UserWarning, match="and 2 more"):
        ours.translate(SENTENCES[:1] * 12)


def test_options_and_mode(subwords: Subwords) -> None:
    ours = translator(subwords)
    ours.system.train()
    line = SENTENCES[:1]
    assert len(ours.translate_scored(line)[0]) == 5
    assert len(ours.translate_scored(line, length_candidates=2, refine_steps=3)[0]) == 2
    assert len(ours.translate_scored(line, bf16=True)[0]) == 5
    assert ours.system.training  # as it was before
    three = Translator(ours.system, subwords, decoding={"length_candidates": 3})
    assert len(three.translate_scored(line)[0]) == 3
    three.change_decoding(length_candidates=4)
    assert len(three.translate_scored(line)[0]) == 4
    assert three.decoding["repeats"] == "merge"  # all options, with their defaults
    best = [hypotheses[:1] for hypotheses in three.translate_scored(SENTENCES)]
    assert three.translate_scored(SENTENCES, most=1) == best
    three.change_decoding(length_candidates=1)
    with pytest.raises(UserError, match="length_candidates"):  # though it equals the one before
        three.change_decoding(length_candidates=True)
    three.change_decoding(length_candidates=4)
    with pytest.raises(UserError, match="must be at least 1"):
        three.change_decoding(length_candidates=0)
    assert three.decoding["length_candidates"] == 4


def test_no_dropout_when_another_thread_is_done_before(
    subwords: Subwords, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, modes = translator(subwords), list[bool]()
    ours.system.train()
    first = threading.Thread(target=ours.translate, args=(SENTENCES[:1],))
    first_is_in, second_is_in = threading.Event(), threading.Event()

    translate = cmlm.Model.translate

    def decode(*arguments: Any, **options: Any) -> list[list[Hypothesis]]:
        if threading.current_thread() is first:
            first_is_in.set()
            second_is_in.wait(20)
        else:
            second_is_in.set()
            first.join(20)
        modes.append(ours.system.training)
        return translate(*arguments, **options)

    monkeypatch.setattr(cmlm.Model, "translate", decode)
    first.start()
    first_is_in.wait(20)
    ours.translate(SENTENCES[:1])
    assert modes == [False, False]
    assert ours.system.training


def test_rejects_options_that_the_system_does_not_have(subwords: Subwords) -> None:
    ours = translator(subwords)
    with pytest.raises(UserError) as error:
        ours.translate(["a dog"], refine_step=2, beam=5, length_candidates=0, repeats="drop")
    assert str(error.value).splitlines() == [
        "decoding with cmlm: 4 problems",
        "  refine_step is not an option; did you mean refine_steps?",
        "  beam is not an option; known: "
        "length_candidates, repeats, length_penalty, length_share, refine_steps, "
        "length_multiplier, score_merged",
        "  length_candidates must be at least 1, got 0",
        "  repeats must be one of merge, forbid, keep, got 'drop'",
    ]
    with pytest.raises(UserError, match=r"; known: beam, length_penalty, max_ratio$"):
        translator(subwords, "transformer").translate(["a dog"], length_candidates=3)
    with pytest.raises(UserError, match=r"deduplicate is not an option; known: method, bonus, "):
        translator(subwords, "ctc").translate(["a dog"], deduplicate=False)
    with pytest.raises(UserError, match=r"beam is not an option; there are none here$"):
        translator(subwords, "language_model").decoding_with(beam=3)
    with pytest.raises(UserError, match="length_penalty must be at least 0, got nan"):
        translator(subwords, "transformer").translate(["a dog"], length_penalty=float("nan"))
    with pytest.raises(UserError, match=r"length_penalty must be at most 10, got 1000000000.0"):
        translator(subwords, "transformer").translate(["a dog"], length_penalty=1e9)
    with pytest.raises(UserError, match="1 problem\n  beams is not an option; did you mean beam"):
        Translator(translator(subwords, "transformer").system, subwords, decoding={"beams": 2})


def test_rejects_a_language_model(subwords: Subwords) -> None:
    with pytest.raises(UserError, match=r"language model, which cannot translate; .*evaluate --lm"):
        translator(subwords, "language_model").translate(["a dog"])


def test_rejects_other_subwords_and_what_is_no_list_of_sentences(subwords: Subwords) -> None:
    ours = translator(subwords)
    with pytest.raises(UserError, match="there are 60 subwords, but the model knows 30"):
        Translator(micro(), subwords)
    with pytest.raises(UserError, match="put it in a list"):
        ours.translate("a dog")
    wrong: list[tuple[Any, str]] = [
        (None, "got None; give it a list"),
        (iter(["a dog"]), "got <list_iterator .*; give it a list"),
        (["a dog", 1], r"got 1 as sentence 1 \(counted from 0\); give it strings"),
        ([["a dog"]], r"got \['a dog'\] as sentence 0"),
    ]
    for sentences, message in wrong:
        with pytest.raises(UserError, match=message):
            ours.translate(sentences)
    assert ours.translate(("a dog",)) == ours.translate(["a dog"])


def test_batches_hold_every_sentence_once_within_the_budget() -> None:
    lengths = [int(n) for n in torch.randint(0, 30, (200,))]
    found = list(batches(lengths, 64))
    assert sorted(i for batch in found for i in batch) == [i for i in range(200) if lengths[i]]
    assert all(len(b) == 1 or max(lengths[i] for i in b) * len(b) <= 64 for b in found)
    assert padded([[5, 6], [7]]).tolist() == [[5, 6], [7, PAD]]
