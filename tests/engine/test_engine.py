"""An exported model translates as the model that it was made from, without torch."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.numpy import load_file, save_file

from oaxe.decoding.exported import LENGTH_SHARE, export
from oaxe.decoding.saved import is_exported
from oaxe.decoding.translator import Translator
from oaxe.engine.engine import DECODINGS, FILES, Engine, available_threads
from oaxe.engine.export import export as write_folder
from oaxe.engine.graph import Graph
from oaxe.search.options import CTCDecoding
from oaxe.support.checksums import sha256
from oaxe.support.errors import UserError
from oaxe.systems import find
from oaxe.text.corpus import Sentences
from oaxe.text.ngram_files import load_ngrams, save_ngrams
from oaxe.text.ngrams import estimate
from oaxe.text.subwords import Subwords
from tests.decoding.samples import SENTENCES, check_same
from tests.models import emphasise, micro
from tests.systems.digits import digit_strings, learn

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "cmlm": ("cmlm", {}, {}),
    "cmlm, pre-norm": ("cmlm", {"norm": "pre"}, {}),
    "cmlm, from both ends": ("cmlm", {"positions": "both"}, {}),
    "cmlm, AXE": ("cmlm", {}, {"loss": "axe"}),
    "cmlm, deep encoder": ("cmlm", {"encoder_layers": 3, "decoder_layers": 1}, {}),
    "glat": ("glat", {}, {}),
    "ctc": ("ctc", {}, {"upsample": 3}),
    "ctc_glat": ("ctc_glat", {"norm": "pre"}, {}),
    "dag": ("dag", {}, {"vertices": 3}),
    "hint": ("hint", {}, {}),
    "ddrs": ("ddrs", {}, {}),
    "imputer": ("imputer", {}, {}),
}


def translator(subwords: Subwords, case: str) -> Translator:
    name, architecture, options = CASES[case]
    sizes = {"vocab_size": subwords.vocab_size, "max_length": 40, **architecture}
    system = micro(name, options=options, **sizes)
    if "loss" in options or DECODINGS[name] is CTCDecoding:
        emphasise(system, 5)  # blanks
    return Translator(system, subwords, languages=("en", "xx"))


def exported(ours: Translator, folder: Path, *, int8: bool = False) -> Translator:
    export(ours, folder, int8=int8, length_share=0.0)
    return Translator.from_pretrained(folder, threads=1)


@pytest.mark.parametrize("case", CASES)
def test_translates_as_torch_does(case: str, subwords: Subwords, tmp_path: Path) -> None:
    torch.manual_seed(4)
    ours = translator(subwords, case)
    engine = exported(ours, tmp_path / "new")
    options: list[dict[str, Any]] = [{}]
    if "cmlm" in case:
        options += [{"repeats": "keep", "length_penalty": 1.5}, {"length_multiplier": 1.3}]
        # Of many blanks, all as good as certain, rounding decides which is the least likely.
        options += [{"refine_steps": 3}] * (case != "cmlm, AXE")
    if case in ("cmlm", "glat"):
        options += [{"length_candidates": 1}, {"length_share": 0.9}, {"length_share": 0.5}]
        options += [{"length_candidates": 60}]
    if DECODINGS[ours.system.name] is CTCDecoding:
        options += [{"bonus": bonus} for bonus in (0.5, 2.0, 8.0)]
        options += [{"method": "beam", "bonus": bonus, "beam": 6} for bonus in (0.0, 1.5)]
        options += [{"method": "beam", "beam": 1, "top_words": 3}]
    if case == "dag":
        options += [
            {"method": m, "length_penalty": 0.5} for m in ("viterbi", "lookahead", "greedy")
        ]
        options += [{"method": "beam", "length_penalty": power, "beam": 6} for power in (0.5, 2.0)]
        options += [{"method": "beam", "beam": 1, "top_words": 1}]
    for changes in options:
        for batch_tokens in (1, 10**6):
            how: dict[str, Any] = {"batch_tokens": batch_tokens, **changes}
            expected = ours.translate_scored(SENTENCES, **how)
            assert len({t[0].text for t in expected}) > 3
            found = engine.translate_scored(SENTENCES, **how)
            check_same(found, expected, 2e-3)
            for t in (t for of_sentence in found for t in of_sentence if t.length):
                assert t.positions is not None
                fates = t.positions.fates()
                kept = [i for i, fate in enumerate(fates) if fate == "kept"]
                assert t.positions.tokens[kept].tolist() == t.tokens
                on_path = len(fates) - fates.count("skipped")
                assert on_path == t.length - (case == "dag")  # whose last vertex says nothing
    assert engine.languages == ours.languages
    assert str(engine.decoding_with()) == str(ours.decoding_with())


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("case", ["ctc", "dag"])
def test_ngrams_are_part_of_an_exported_model(
    case: str, int8: bool, subwords: Subwords, tmp_path: Path
) -> None:
    """They are in its folder, which may be moved; in 8 bits they say nearly the same."""
    torch.manual_seed(4)
    ours = translator(subwords, case)
    tokens = subwords.encode(SENTENCES * 3)
    ends = np.cumsum([0, *map(len, tokens)])
    text = Sentences(np.concatenate([np.array(row, np.int64) for row in tokens]), ends)
    save_ngrams(tmp_path / "lm", estimate(text, subwords.vocab_size, 3), subwords)
    ours.change_decoding(method="beam", lm=str(tmp_path / "lm"), lm_weight=2.0)
    ours.change_decoding(**({"bonus": 1.0} if case == "ctc" else {"length_penalty": 2.0}))
    expected = ours.translate_scored(SENTENCES)
    assert ours.translate(SENTENCES, lm=None) != [best.text for best, *_ in expected]
    exported(ours, tmp_path / "new", int8=int8)
    (tmp_path / "new").rename(tmp_path / "moved")
    shutil.rmtree(tmp_path / "lm")
    engine = Translator.from_pretrained(tmp_path / "moved", threads=1)
    found = engine.translate_scored(SENTENCES)
    if not int8:
        check_same(found, expected, 2e-3)
    kept = load_ngrams(tmp_path / "moved" / "ngrams")
    full = estimate(text, subwords.vocab_size, 3)
    for got, exact in zip(kept.orders, full.orders, strict=True):
        assert np.array_equal(got.keys, exact.keys)
        sayable = exact.log_probs > -15
        error = np.abs(got.log_probs - exact.log_probs)[sayable].max()
        assert (0 < error < 1 / 30) if int8 else error == 0
    assert load_config(tmp_path / "moved")["decoding"]["lm"] == "ngrams"
    (tmp_path / "moved" / "ngrams" / "ngrams.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"ngrams\.safetensors"):
        Translator.from_pretrained(tmp_path / "moved").translate(["a dog"])


def load_config(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text())


def test_share_leaves_out_unlikely_lengths(subwords: Subwords, tmp_path: Path) -> None:
    ours = translator(subwords, "cmlm")
    engine = exported(ours, tmp_path / "new")
    for model in (ours, engine):
        every = model.translate_scored(SENTENCES, length_candidates=4)
        some = model.translate_scored(SENTENCES, length_candidates=4, length_share=0.7)
        few = model.translate_scored(SENTENCES, length_candidates=4, length_share=1.0)
        assert {len(found) for found in every} == {1, 4}  # 1: an empty line
        assert {len(found) for found in few} == {1}
        assert len({len(found) for found in some}) > 1
        for of_some, of_every in zip(some, every, strict=True):
            assert {t.length for t in of_some} <= {t.length for t in of_every}


def test_exported_models_leave_out_unlikely_lengths_by_default(
    subwords: Subwords, tmp_path: Path
) -> None:
    ours = translator(subwords, "cmlm")
    export(ours, tmp_path / "default")
    ours.change_decoding(length_share=0.6)
    export(ours, tmp_path / "own")
    found = [Translator.from_pretrained(tmp_path / name).decoding for name in ("default", "own")]
    assert [decoding["length_share"] for decoding in found] == [LENGTH_SHARE, 0.6]


def test_a_pass_is_never_larger_than_the_cache(
    subwords: Subwords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = exported(translator(subwords, "ctc"), tmp_path / "new")
    expected, sizes = engine.translate(SENTENCES * 9), list[int]()
    original = Engine._pass

    def counted(self: Engine, decoding: Any, sources: Any) -> Any:
        sizes.append(len(sources) * max(map(len, sources)))
        return original(self, decoding, sources)

    monkeypatch.setattr(Engine, "_pass", counted)
    monkeypatch.setattr(Engine, "at_once", 100)
    assert engine.translate(SENTENCES * 9) == expected
    assert len(sizes) > 2
    assert max(sizes) <= 100


def test_lengths_are_tried_in_passes_that_fit_into_the_cache(
    subwords: Subwords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sentences are encoded together, whatever number of lengths each of them has."""
    engine = exported(translator(subwords, "cmlm"), tmp_path / "new")
    sentences, encoded, tried = SENTENCES * 3, list[int](), list[tuple[int, int]]()
    expected = engine.translate_scored(sentences)
    encode, of_lengths = Engine._encode, Engine._of_lengths

    def counted_encode(self: Engine, source: Any) -> Any:
        encoded.append(len(source))
        return encode(self, source)

    def counted_lengths(self: Engine, lengths: Any, memory: Any, *arguments: Any) -> Any:
        tried.append((len(memory), len(lengths) * lengths.max()))
        return of_lengths(self, lengths, memory, *arguments)

    monkeypatch.setattr(Engine, "_encode", counted_encode)
    monkeypatch.setattr(Engine, "_of_lengths", counted_lengths)
    monkeypatch.setattr(Engine, "at_once", 150)
    check_same(engine.translate_scored(sentences), expected)
    assert len(tried) > len(encoded) > 1
    together = [positions for sentences, positions in tried if sentences > 1]
    assert together
    assert max(together) <= 150


def test_passes_side_by_side_are_those_of_one_thread(subwords: Subwords, tmp_path: Path) -> None:
    export(translator(subwords, "cmlm"), tmp_path / "new")
    one, three = (Translator.from_pretrained(tmp_path / "new", threads=n) for n in (1, 3))
    for count in (1, 2, 20):
        sentences = (SENTENCES * 3)[:count]
        check_same(three.translate_scored(sentences), one.translate_scored(sentences))


def test_every_thread_has_a_pass(
    subwords: Subwords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(translator(subwords, "ctc"), tmp_path / "new")
    engine = Translator.from_pretrained(tmp_path / "new", threads=2)
    original, both = Engine._pass, Barrier(2)

    def together(self: Engine, decoding: Any, sources: Any) -> Any:
        assert len(sources) == 2
        both.wait(20)
        return original(self, decoding, sources)

    monkeypatch.setattr(Engine, "_pass", together)
    assert len(engine.translate(["the dog sleeps"] * 4)) == 4


def test_decoding_options_are_those_of_the_systems() -> None:
    for name, decoding in DECODINGS.items():
        assert find(name).Decoding is decoding


@pytest.mark.parametrize(
    ("case", "options", "message"),
    [
        ("ctc_glat", {"method": "samples"}, "no method: samples; take greedy or beam, or the mod"),
        ("dag", {"method": "samples"}, "no method: samples; take another method, or the model th"),
        ("cmlm", {"score_merged": True}, "no score_merged: True; take false, or the model"),
        ("cmlm", {"repeats": "forbid"}, "no repeats: forbid; take merge or keep, or the model"),
    ],
)
def test_rejects_what_only_torch_can_do(
    case: str, options: dict[str, Any], message: str, subwords: Subwords, tmp_path: Path
) -> None:
    ours = translator(subwords, case)
    engine = exported(ours, tmp_path / "new")
    with pytest.raises(UserError, match=message):
        engine.translate(["a dog"], **options)
    ours.change_decoding(**options)
    (name,) = options
    with pytest.warns(UserWarning, match=f"has no {name}: {options[name]}; it is exported with"):
        export(ours, tmp_path / "another", length_share=0.0)
    another = Translator.from_pretrained(tmp_path / "another", threads=1)
    assert another.decoding == engine.decoding
    assert another.translate(SENTENCES) == engine.translate(SENTENCES)


@pytest.mark.parametrize("case", ["cmlm", "cmlm, pre-norm", "ctc", "dag"])
def test_int8_agrees(case: str, subwords: Subwords, tmp_path: Path) -> None:
    torch.manual_seed(1)
    ours = translator(subwords, case)
    engine = exported(ours, tmp_path / "new", int8=True)
    assert engine.system.precision == "int8"
    # What the passes compute, before a close decision can tip.
    source = np.array([[*subwords.encode(SENTENCES[:1])[0], 2]])
    hidden = engine.system._encode(source)[0]
    expected = ours.system.transformer.encode(torch.from_numpy(source)).hidden.detach().numpy()
    error = np.abs(hidden - expected).max() / np.abs(expected).max()
    assert 0 < error < 0.05


@pytest.mark.parametrize("case", ["cmlm", "cmlm, pre-norm", "ctc", "dag"])
def test_int8_translates_a_sentence_as_it_does_alone(
    case: str, subwords: Subwords, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    engine = exported(translator(subwords, case), tmp_path / "new", int8=True)
    alone = [engine.translate_scored([sentence])[0] for sentence in SENTENCES]
    check_same(engine.translate_scored(SENTENCES * 3), alone * 3, 1e-3)


def test_numbers_beyond_the_range_become_the_nearest_within() -> None:
    x = np.array([[-9.0, -1.0, 0.0, 2.0, 9.0]], np.float32)
    graph = Graph({"transformer.tokens.weight": x}, 1)
    whole, step, zero = graph._whole("x", -1.0, 2.0)
    graph.result("found", graph.add("DequantizeLinear", whole, step, zero))
    session = onnxruntime.InferenceSession(graph.model({"x": "ff"}, "g"))
    (found,) = session.run(["found"], {"x": x})
    np.testing.assert_allclose(found, [[-1, -1, 0, 2, 2]], atol=1e-6)


def test_int8_has_the_words_of_float32_in_a_trained_model(
    subwords: Subwords, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = learn("cmlm", steps=120, inputs="unobserved", label_smoothing=0.0)
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    config = {**model.description(), "decoding": {"length_candidates": 1, "repeats": "keep"}}
    write_folder(tmp_path, weights, config, subwords, int8=True)
    engine = Engine(tmp_path, json.loads((tmp_path / "config.json").read_text()), threads=1)
    source, _, _ = digit_strings(300)
    rows = [row[row != 0].tolist() for row in source]
    how = engine.decoding_type(length_candidates=1, repeats="keep")
    found = [hypotheses[0].tokens for hypotheses in engine.translate(rows, how)]
    expected = [hypotheses[0].tokens for hypotheses in model.translate(source, how)]
    same = [
        a == b for f, e in zip(found, expected, strict=True) for a, b in zip(f, e, strict=False)
    ]
    assert np.mean([len(f) == len(e) for f, e in zip(found, expected, strict=True)]) >= 0.97
    assert np.mean(same) >= 0.97


@pytest.mark.parametrize("case", ["cmlm", "ctc", "dag"])
def test_needs_neither_torch_nor_onnx(case: str, subwords: Subwords, tmp_path: Path) -> None:
    ours = translator(subwords, case)
    if case != "cmlm":
        ours.change_decoding(method="beam")
    export(ours, tmp_path / "new", length_share=0.0)
    code = (
        "import sys, oaxe\n"
        f"found = oaxe.Translator.from_pretrained({str(tmp_path / 'new')!r}, threads=1)\n"
        f"print(found.translate({SENTENCES[:2]!r}))\n"
        "assert not {'torch', 'onnx', 'scipy'} & set(sys.modules), sorted(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stderr == ""
    assert result.stdout == f"{ours.translate(SENTENCES[:2])}\n"


def test_folder_is_whole_and_checked(subwords: Subwords, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    ours = translator(subwords, "cmlm")
    engine = exported(ours, folder, int8=True)
    assert is_exported(folder)
    assert not is_exported(tmp_path)
    assert {path.name for path in folder.iterdir()} == {*FILES, "subwords.model", "config.json"}
    config = json.loads((folder / "config.json").read_text())
    assert config["architecture"] == ours.system.architecture
    mistakes: dict[str, Callable[[], object]] = {
        "is not empty; give a new folder": lambda: export(ours, folder),
        "was exported before": lambda: export(engine, tmp_path / "another"),
        "is saved already": lambda: engine.save_pretrained(tmp_path / "another"),
        "cannot be on cuda": lambda: Translator.from_pretrained(folder, device="cuda"),
        "its own precision, int8; leave out": lambda: engine.translate(["a dog"], bf16=True),
        "beam is not an option": lambda: engine.translate(["a dog"], beam=2),
    }
    for message, make in mistakes.items():
        with pytest.raises(UserError, match=message):
            make()
    content = bytearray((folder / "decoder.onnx").read_bytes())
    content[-5] ^= 1
    (folder / "decoder.onnx").write_bytes(content)
    with pytest.raises(UserError, match=r"decoder\.onnx is damaged"):
        Translator.from_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config.json", {"system": "dslp"}, "system 'dslp'; this version .* of cmlm, glat, hint"),
        ("config.json", {"options": {"upsample": 10**9}}, "upsample of ctc .* from 1 to 100, got"),
        ("config.json", {"options": {}}, "from 1 to 100, got None; copy the folder again"),
        ("tables.safetensors", b"no tables", "tables.safetensors is no safetensors file"),
        ("tables.safetensors", {"scale": np.ones(3, np.float32)}, "does not fit .*: scale; export"),
        ("tables.safetensors", {"tokens": np.ones(3, np.int8)}, "does not fit .*: tokens; export"),
        ("tables.safetensors", {"source_positions": np.array([np.inf])}, "finite: source_positio"),
        ("decoder.onnx", b"no graph", "decoder.onnx cannot be read: .*export it again"),
    ],
)
def test_rejects_folders_whose_checksums_are_right_alone(
    name: str, change: Any, message: str, subwords: Subwords, tmp_path: Path
) -> None:
    export(translator(subwords, "ctc"), tmp_path, int8=True)
    config = json.loads((tmp_path / "config.json").read_text())
    if name == "config.json":
        config |= change
    elif isinstance(change, bytes):
        (tmp_path / name).write_bytes(change)
    else:
        save_file(load_file(tmp_path / name) | change, tmp_path / name)
    config["sha256"] = {file: sha256(tmp_path / file) for file in config["sha256"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=message):
        Translator.from_pretrained(tmp_path)


def test_rejects_other_systems(subwords: Subwords, tmp_path: Path) -> None:
    system = micro("transformer", vocab_size=subwords.vocab_size)
    with pytest.raises(UserError, match=r"system transformer cannot be exported.*cmlm, glat, hint"):
        export(Translator(system, subwords), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_threads(monkeypatch: pytest.MonkeyPatch, subwords: Subwords, tmp_path: Path) -> None:
    engine = exported(translator(subwords, "cmlm"), tmp_path / "new").system
    assert isinstance(engine, Engine)
    assert engine.threads == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert available_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert available_threads() >= 1
