"""The translator: order, empty and over-long lines, batches, and the folder it is saved in."""

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from oaxe.decoding import translator as translator_module
from oaxe.decoding.saved import CONFIG, SUBWORDS, WEIGHTS, _crc32
from oaxe.decoding.translator import Translator, batches, padded
from oaxe.search.beam import beam_search
from oaxe.search.hypothesis import Hypothesis
from oaxe.search.one_pass import translate_batch
from oaxe.support.errors import UserError
from oaxe.text.subwords import Subwords, train_subwords
from oaxe.text.symbols import EOS, PAD
from tests.model.test_model import KINDS, micro

SENTENCES = [
    "a small dog runs over the green field",
    "two men",
    "",
    "the children play in the water near a big red boat while it rains",
    "   ",
    "a woman reads",
    "the dog sleeps in the old boat",
    "rain",
]


@pytest.fixture(scope="module")
def subwords(tmp_path_factory: pytest.TempPathFactory) -> Subwords:
    path = tmp_path_factory.mktemp("subwords") / "subwords.model"
    return train_subwords([s for s in SENTENCES if s.strip()], path, 60)


def translator(subwords: Subwords, kind: str = "nat", **options: Any) -> Translator:
    model = micro(kind, "pre", vocab_size=subwords.vocab_size, **{"max_length": 40, **options})
    return Translator(model, subwords, languages=("en", "xx"))


@pytest.mark.parametrize("kind", KINDS)
def test_equals_one_sentence_at_a_time(kind: str, subwords: Subwords) -> None:
    ours = translator(subwords, kind)
    decode = beam_search if kind == "at" else translate_batch
    expected = []
    for tokens in subwords.encode(SENTENCES):
        hypotheses = decode(ours.model, torch.tensor([[*tokens, EOS]]))[0] if tokens else []
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


def test_nothing_and_empty_lines(subwords: Subwords) -> None:
    ours = translator(subwords)
    assert ours.translate([]) == []
    assert ours.translate(["", " ", "\n"]) == ["", "", ""]


def test_long_lines_are_cut_and_named(subwords: Subwords) -> None:
    ours = translator(subwords, max_length=6)
    with pytest.warns(UserWarning, match=r"cut after 6 subwords.*line 11 \(\d+\), line 14 \(\d+\)"):
        found = ours.translate(SENTENCES, first_line=11)
    tokens = subwords.encode(SENTENCES[:1])[0][:6]
    (cut,) = translate_batch(ours.model, torch.tensor([[*tokens, EOS]]))
    assert found[0] == subwords.decode([cut[0].tokens])[0]
    with pytest.warns(UserWarning, match="and 2 more"):
        ours.translate(SENTENCES[:1] * 12)


def test_options_and_mode(subwords: Subwords) -> None:
    ours = translator(subwords)
    ours.model.train()
    line = SENTENCES[:1]
    assert len(ours.translate_scored(line)[0]) == 5
    assert len(ours.translate_scored(line, length_candidates=2, refine_steps=3)[0]) == 2
    assert len(ours.translate_scored(line, bf16=True)[0]) == 5
    assert ours.model.training  # as it was before
    three = Translator(ours.model, subwords, decoding={"length_candidates": 3})
    assert len(three.translate_scored(line)[0]) == 3


def test_no_dropout_when_another_thread_is_done_before(
    subwords: Subwords, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, modes = translator(subwords), list[bool]()
    ours.model.train()
    first = threading.Thread(target=ours.translate, args=(SENTENCES[:1],))
    first_is_in, second_is_in = threading.Event(), threading.Event()

    def decode(*arguments: Any, **options: Any) -> list[list[Hypothesis]]:
        if threading.current_thread() is first:
            first_is_in.set()
            second_is_in.wait(20)
        else:
            second_is_in.set()
            first.join(20)
        modes.append(ours.model.training)
        return translate_batch(*arguments, **options)

    monkeypatch.setattr(translator_module, "translate_batch", decode)
    first.start()
    first_is_in.wait(20)
    ours.translate(SENTENCES[:1])
    assert modes == [False, False]
    assert ours.model.training


def test_options_that_cannot_be(subwords: Subwords) -> None:
    ours = translator(subwords)
    with pytest.raises(UserError) as error:
        ours.translate(["a dog"], refine_step=2, beam=5, length_candidates=0, deduplicate=1)
    assert str(error.value).splitlines() == [
        "refine_step is no option of a model of kind 'nat'; did you mean refine_steps?",
        "beam is no option of a model of kind 'nat'; there are "
        "length_candidates, deduplicate, refine_steps, remove_blanks, length_penalty",
        "length_candidates must be at least 1, got 0",
        "deduplicate must be bool, got 1",
    ]
    with pytest.raises(UserError, match=r"; there are beam, length_penalty, max_ratio$"):
        translator(subwords, "at").translate(["a dog"], length_candidates=3)
    with pytest.raises(UserError, match=r"no option of a model of kind 'ctc'; it has none$"):
        translator(subwords, "ctc").translate(["a dog"], beam=3)
    with pytest.raises(UserError, match="length_penalty must be finite and not negative, got nan"):
        translator(subwords, "at").translate(["a dog"], length_penalty=float("nan"))
    with pytest.raises(UserError, match=r"length_penalty must be at most 10, got 1000000000.0"):
        translator(subwords, "at").translate(["a dog"], length_penalty=1e9)
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


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded(kind: str, subwords: Subwords, tmp_path: Path) -> None:
    ours = translator(subwords, kind)
    for _ in range(2):  # the second time over a folder that is there
        ours.save_pretrained(tmp_path / "a" / "b")
    loaded = Translator.from_pretrained(str(tmp_path / "a" / "b"))
    assert loaded.translate_scored(SENTENCES) == ours.translate_scored(SENTENCES)
    assert (loaded.kind, loaded.languages, loaded.decoding) == (
        kind.split()[0],
        ("en", "xx"),
        ours.decoding,
    )
    assert not loaded.model.training
    assert all(p.requires_grad for p in loaded.model.parameters())
    files = {path.name for path in (tmp_path / "a" / "b").iterdir()}
    assert files == {WEIGHTS, CONFIG, SUBWORDS}
    weights = load_file(tmp_path / "a" / "b" / WEIGHTS)
    shape = ours.model.output_weight.shape
    assert [n for n, w in weights.items() if w.shape == shape] == ["tokens.weight"]
    config = json.loads((tmp_path / "a" / "b" / CONFIG).read_text())
    assert config["format"] == 1
    assert config["kind"] == kind.split()[0]


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **changes}))


def test_all_tensors_that_do_not_fit_are_named_at_once(subwords: Subwords, tmp_path: Path) -> None:
    translator(subwords).save_pretrained(tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    del weights["length.bias"]
    weights["tokens.weight"] = weights["tokens.weight"][:50].clone()
    weights["extra"] = torch.zeros(2)
    save_file(weights, tmp_path / WEIGHTS)
    crc32 = {name: _crc32(tmp_path / name) for name in (WEIGHTS, SUBWORDS)}
    change_config(tmp_path, crc32=crc32)
    with pytest.raises(UserError) as error:
        Translator.from_pretrained(tmp_path)
    assert str(error.value).splitlines()[1:] == [
        "  extra is not part of this model",
        "  length.bias is missing",
        "  tokens.weight has shape (50, 32), not (60, 32)",
    ]


def test_damaged_files_are_named(subwords: Subwords, tmp_path: Path) -> None:
    def saved(name: str) -> Path:
        translator(subwords).save_pretrained(tmp_path / name)
        return tmp_path / name

    def message(folder: Path) -> str:
        with pytest.raises(UserError) as error:
            Translator.from_pretrained(folder)
        return str(error.value)

    for name in (WEIGHTS, SUBWORDS):
        folder = saved(f"one byte of {name}")
        content = bytearray((folder / name).read_bytes())
        content[-5] ^= 1
        (folder / name).write_bytes(content)
        assert re.search(f"{name} is damaged: its CRC32 is", message(folder))
        (folder / name).unlink()
        assert f"has no {name}" in message(folder)
    folder = saved("config")
    change_config(folder, format=2)
    assert "has format 2, this version of oaxe reads 1" in message(folder)
    (folder / CONFIG).write_text("[]")
    assert "has format None" in message(folder)
    (folder / CONFIG).write_text('{"format": 1, "kind": "nat", "model": {}}')
    assert "lacks crc32, decoding, languages;" in message(folder)
    (folder / CONFIG).write_text("{")
    assert "is not JSON" in message(folder)
    (folder / CONFIG).unlink()
    assert f"has no {CONFIG}" in message(folder)
    folder = saved("architecture")
    change_config(folder, model={"dim": 12, "breadth": 3})
    assert "is no architecture" in message(folder)


def test_a_name_that_is_no_folder_is_looked_up_on_the_hub(
    subwords: Subwords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = translator(subwords)
    ours.save_pretrained(tmp_path)
    asked: list[str] = []

    def hub(name: str, *, allow_patterns: list[str]) -> str:
        asked.append(name)
        assert set(allow_patterns) == {WEIGHTS, CONFIG, SUBWORDS}
        if name != "someone/translator":
            raise FileNotFoundError("no such repository")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", hub)
    found = Translator.from_pretrained("someone/translator").translate(SENTENCES)
    assert found == ours.translate(SENTENCES)
    with pytest.raises(UserError, match=r"no/where is no folder here.*no such repository"):
        Translator.from_pretrained("no/where")
    with pytest.raises(UserError, match=r"there is no folder .*nowhere; give one of"):
        Translator.from_pretrained(tmp_path / "nowhere")
    Translator.from_pretrained(tmp_path)
    assert asked == ["someone/translator", "no/where"]
