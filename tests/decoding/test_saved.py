"""The folder of a saved model: as it was written, or an error that says what is wrong."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from oaxe.decoding.hub import CARD
from oaxe.decoding.saved import CONFIG, EXPORTED, SUBWORDS, WEIGHTS
from oaxe.decoding.translator import Translator
from oaxe.support.checksums import sha256
from oaxe.support.errors import UserError
from oaxe.text.subwords import Subwords
from tests.decoding.samples import KINDS, SENTENCES, check_same, translator
from tests.models import micro


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded(kind: str, subwords: Subwords, tmp_path: Path) -> None:
    ours = translator(subwords, kind)
    folder = tmp_path / "a" / "b"
    for _ in range(2):  # the second time over a folder that is there
        ours.save_pretrained(folder)
    loaded = Translator.from_pretrained(str(folder))
    check_same(loaded.translate_scored(SENTENCES), ours.translate_scored(SENTENCES))
    assert loaded.system.description() == ours.system.description()
    assert (loaded.languages, loaded.decoding) == (("en", "xx"), ours.decoding)
    assert not loaded.system.training
    assert all(p.requires_grad for p in loaded.system.parameters())
    assert {path.name for path in folder.iterdir()} == {WEIGHTS, CONFIG, SUBWORDS, CARD}
    weights, shape = load_file(folder / WEIGHTS), ours.system.transformer.output_weight.shape
    assert [n for n, w in weights.items() if w.shape == shape] == ["transformer.tokens.weight"]
    config = json.loads((folder / CONFIG).read_text())
    assert config["format"] == 2
    assert config["system"] == kind.split()[0]


def test_options_and_decoding_are_saved(subwords: Subwords, tmp_path: Path) -> None:
    ours = translator(subwords)
    ours.system = micro(
        options={"loss": {"name": "oaxe", "truncation": 0.2}, "length_weight": 0.5},
        vocab_size=subwords.vocab_size,
    )
    ours.change_decoding(length_candidates=2, length_penalty=0.5)
    ours.save_pretrained(tmp_path)
    loaded = Translator.from_pretrained(tmp_path)
    assert loaded.system.options == ours.system.options
    assert loaded.decoding == ours.decoding
    assert loaded.decoding["length_candidates"] == 2


def test_half_precision_weights_are_loaded_in_float32(subwords: Subwords, tmp_path: Path) -> None:
    ours = translator(subwords)
    ours.system.half()
    ours.save_pretrained(tmp_path)
    loaded = Translator.from_pretrained(tmp_path).system
    for name, weight in loaded.state_dict().items():
        assert weight.dtype == torch.float32
        assert weight.equal(ours.system.state_dict()[name].float())


def test_loading_draws_no_random_numbers(subwords: Subwords, tmp_path: Path) -> None:
    translator(subwords).save_pretrained(tmp_path)
    before = torch.get_rng_state()
    Translator.from_pretrained(tmp_path)
    assert torch.get_rng_state().equal(before)


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **changes}))


def sign(folder: Path) -> None:
    """With the checksums of what is there."""
    change_config(folder, sha256={name: sha256(folder / name) for name in (WEIGHTS, SUBWORDS)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": {"encoder_layers": 100_000}}, r"encoder_layers must .* 512, got 100000"),
        ({"architecture": {"dim": 1e99}}, r"architecture.dim must be a number .* got 1e\+99"),
        ({"architecture": {"max_length": 10**12}}, r"max_length .* to 1,000,000, got"),
        ({"architecture": {"dropout": float("nan")}}, "architecture.dropout must be a number"),
        ({"architecture": {"heads": "4"}}, "architecture.heads must be a number"),
        ({"architecture": {"heads": 0}}, '"architecture" in .* is none'),
        ({"architecture": [1]}, r'"architecture" must be an object .* got \[1\]'),
        ({"architecture": {"max_length": "many"}}, "architecture.max_length must .* got 'many'"),
        ({"decoding": {"refine_steps": 10**9}}, "refine_steps must be at most 1,000"),
        ({"decoding": [], "options": 3}, r'(?s)"decoding" must be.*"options" must be'),
        ({"system": ["cmlm"]}, r'"system" must be a name, got \[.cmlm.\]'),
        ({"languages": "en"}, r'"languages" must be two names, source and target, got .en'),
        ({"sha256": {}}, f'"sha256" in .* lacks {WEIGHTS}, {SUBWORDS}'),
        ({"sha256": 3}, '"sha256" in .* lacks every file'),
        ({"sha256": {WEIGHTS: "0", SUBWORDS: []}}, f"{WEIGHTS} is damaged: its sha256 is"),
    ],
)
def test_rejects_impossible_descriptions(
    changes: dict[str, Any], message: str, subwords: Subwords, tmp_path: Path
) -> None:
    translator(subwords).save_pretrained(tmp_path)
    if isinstance(architecture := changes.get("architecture"), dict):
        written = json.loads((tmp_path / CONFIG).read_text())["architecture"]
        changes = {"architecture": {**written, **architecture}}
    change_config(tmp_path, **changes)
    with pytest.raises(UserError, match=message):
        Translator.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "..", "a\\b", ""])
def test_checksums_name_files_of_the_folder_alone(
    name: str, subwords: Subwords, tmp_path: Path
) -> None:
    translator(subwords).save_pretrained(tmp_path)
    sums = json.loads((tmp_path / CONFIG).read_text())["sha256"]
    change_config(tmp_path, sha256={**sums, name: "0"})
    with pytest.raises(UserError, match="which is no file of its folder; do not use"):
        Translator.from_pretrained(tmp_path)


def test_folders_without_sha256_are_refused(subwords: Subwords, tmp_path: Path) -> None:
    translator(subwords).save_pretrained(tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    assert "crc32" not in config
    config["crc32"] = config.pop("sha256")
    (tmp_path / CONFIG).write_text(json.dumps(config))
    with pytest.raises(UserError, match="lacks sha256; take the file that was written"):
        Translator.from_pretrained(tmp_path)


def test_rejects_weights_that_are_not_finite(subwords: Subwords, tmp_path: Path) -> None:
    ours = translator(subwords)
    name = "transformer.tokens.weight"
    ours.system.state_dict()[name][3, 4] = torch.nan
    ours.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"not finite, in {name}: its training failed"):
        Translator.from_pretrained(tmp_path)


def test_all_tensors_that_do_not_fit_are_named_at_once(subwords: Subwords, tmp_path: Path) -> None:
    translator(subwords).save_pretrained(tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    tokens = "transformer.tokens.weight"
    del weights["length.output.bias"]
    weights[tokens] = weights[tokens][:50].clone()
    weights["extra"] = torch.zeros(2)
    save_file(weights, tmp_path / WEIGHTS)
    sign(tmp_path)
    with pytest.raises(UserError) as error:
        Translator.from_pretrained(tmp_path)
    assert str(error.value).splitlines()[1:] == [
        "  extra is not part of this model",
        "  length.output.bias is missing",
        f"  {tokens} has shape (50, 32), not (60, 32)",
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
        assert re.search(f"{name} is damaged: its sha256 is", message(folder))
        (folder / name).unlink()
        assert f"has no {name}" in message(folder)
    folder = saved("config")
    (folder / CONFIG).write_text("[]")
    assert "not written by oaxe but by another toolkit" in message(folder)
    (folder / CONFIG).write_text('{"format": 2, "system": "cmlm", "architecture": {}}')
    assert "lacks decoding, languages, options, sha256;" in message(folder)
    for text in ("{", "[" * 100_000):
        (folder / CONFIG).write_text(text)
        assert "is not JSON" in message(folder)
    (folder / CONFIG).unlink()
    assert f"has no {CONFIG}" in message(folder)
    folder = saved("architecture")
    change_config(folder, architecture={"dim": 12, "breadth": 3})
    assert re.search('"architecture" in .*config.json is none: ', message(folder))
    change_config(folder, system="ctc")
    assert '"architecture" in ' in message(folder)
    assert "lacks vocab_size, ffn, heads, encoder_layers, decoder_layers, max_length;" in (
        message(folder)
    )
    folder = saved("options")
    change_config(folder, options={"los": "xe", "length_weight": "much"})
    found = message(folder)
    assert "config.json: 2 problems" in found
    assert "los is not an option; did you mean loss?" in found
    folder = saved("decoding")
    change_config(folder, decoding={"beam": 3})
    assert "beam is not an option" in message(folder)


def test_refuses_a_folder_of_an_earlier_version(subwords: Subwords, tmp_path: Path) -> None:
    translator(subwords).save_pretrained(tmp_path)
    old = {"format": 1, "kind": "nat", "model": {"dim": 32}, "languages": ["en", "xx"]}
    (tmp_path / CONFIG).write_text(json.dumps(old))
    with pytest.raises(UserError) as error:
        Translator.from_pretrained(tmp_path)
    assert str(error.value) == (
        f"{tmp_path / CONFIG} has format 1, this version of oaxe reads 2; "
        "use the version that wrote it"
    )


def test_a_folder_of_models_names_them(subwords: Subwords, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Give a run that oaxe train made"):
        Translator.from_pretrained(tmp_path)
    translator(subwords).save_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match=re.escape(f"Give {tmp_path / 'model'}")):
        Translator.from_pretrained(tmp_path)


def test_a_name_that_is_no_folder_is_looked_up_on_the_hub(
    subwords: Subwords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = translator(subwords)
    ours.save_pretrained(tmp_path)
    asked: list[str] = []

    def hub(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append(name)
        assert revision is None
        assert set(allow_patterns) == {WEIGHTS, CONFIG, SUBWORDS, *EXPORTED, "ngrams/*"}
        if name != "someone/translator":
            raise FileNotFoundError("no such repository")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", hub)
    found = Translator.from_pretrained("someone/translator").translate(SENTENCES)
    assert found == ours.translate(SENTENCES)
    with pytest.raises(UserError, match=r"no/where is no folder here.*no such repository"):
        Translator.from_pretrained("no/where")
    for wrong in ("/no/where/model", "../no/where", "a/b/c", "~/model"):
        with pytest.raises(UserError, match=r"there is no folder .*check the path, or give a name"):
            Translator.from_pretrained(wrong)
    with pytest.raises(UserError, match=r"there is no folder .*nowhere; give one of"):
        Translator.from_pretrained(tmp_path / "nowhere")
    Translator.from_pretrained(tmp_path)
    assert asked == ["someone/translator", "no/where"]
