"""The card of a model as the hub reads it, and the way there and back."""

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, ModelCard

from oaxe.decoding.hub import CARD, MARK, model_card
from oaxe.decoding.saved import FILES
from oaxe.decoding.translator import Translator
from oaxe.support.errors import UserError
from oaxe.text.subwords import Subwords
from tests.decoding.hub import local_hub
from tests.decoding.samples import KINDS, SENTENCES, translator
from tests.models import micro


def card_of(folder: Path) -> ModelCard:
    return ModelCard((folder / CARD).read_text(encoding="utf-8"))


def front_matter(card: ModelCard) -> dict[str, Any]:
    found: dict[str, Any] = card.data.to_dict()  # type: ignore[no-untyped-call]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_card_of_every_system(kind: str, subwords: Subwords, tmp_path: Path) -> None:
    ours = translator(subwords, kind)
    ours.save_pretrained(tmp_path)
    card = card_of(tmp_path)
    assert front_matter(card) == {
        "language": ["en", "xx"],
        "library_name": "oaxe",
        "pipeline_tag": "translation",
        "tags": [ours.system.name],
    }
    for text in ("# Translation from English to xx", str(ours.decoding_with()), "https://"):
        assert text in card.text
    assert all(f"| `{name}` | " in card.text for name in ours.decoding)
    assert str(tmp_path) not in card.content


@pytest.mark.parametrize(
    ("languages", "expected"),
    [
        (("no", "zh-CN"), ["no", "zh"]),  # an unquoted no would be False
        (("x-klingon", "de"), ["de"]),
        (("en-GB", "en_US"), ["en"]),
        (("", ""), None),
    ],
)
def test_languages_of_the_front_matter(
    languages: tuple[str, str], expected: list[str] | None, subwords: Subwords
) -> None:
    ours = translator(subwords)
    card = ModelCard(model_card(ours.system, languages, ours.decoding))
    assert front_matter(card).get("language") == expected


def test_card_of_a_language_model(subwords: Subwords, tmp_path: Path) -> None:
    system = micro("language_model", vocab_size=subwords.vocab_size)
    Translator(system, subwords, languages=("", "de")).save_pretrained(tmp_path)
    card = card_of(tmp_path)
    assert "pipeline_tag" not in front_matter(card)
    assert "# Language model of German" in card.text
    assert "--lm path/to/model" in card.text


def test_paths_are_not_told(subwords: Subwords) -> None:
    ours = translator(subwords, "ctc")
    card = model_card(ours.system, ("en", "de"), {**ours.decoding, "lm": "/home/me/lm.arpa"})
    assert "/home/me" not in card
    assert "| `lm` | a file |" in card


def test_a_card_of_your_own_stays(subwords: Subwords, tmp_path: Path) -> None:
    ours = translator(subwords)
    ours.save_pretrained(tmp_path)
    ours.change_decoding(length_candidates=2)
    ours.save_pretrained(tmp_path)
    assert "| `length_candidates` | 2 |" in card_of(tmp_path).text
    own = card_of(tmp_path).content.replace(MARK, "My own words.")
    (tmp_path / CARD).write_text(own)
    ours.change_decoding(length_candidates=3)
    ours.save_pretrained(tmp_path)
    assert card_of(tmp_path).content == own


@pytest.mark.parametrize("without_xet", ["0", "1"])  # the client has a way of its own for each
def test_to_the_hub_and_back(
    without_xet: str, subwords: Subwords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = translator(subwords)
    with local_hub(tmp_path, monkeypatch, HF_HUB_DISABLE_XET=without_xet) as hub:
        first = ours.push_to_hub("someone/model", private=True)
        model = hub.models["someone/model"]
        assert model.private
        assert {*model.files()} == {*FILES, CARD, ".gitattributes"}
        assert 'from_pretrained("someone/model")' in model.files()[CARD].decode()
        HfApi().upload_file(
            repo_id="someone/model", path_in_repo=CARD, path_or_fileobj=b"My own words."
        )
        ours.change_decoding(length_candidates=2)
        second = ours.push_to_hub("someone/model")
        assert model.files()[CARD] == b"My own words."
        ours.change_decoding(length_candidates=3)
        ours.push_to_hub("someone/model", revision="a/trial")
        ours.push_to_hub("someone/model", revision="a/trial")  # nothing has changed
        assert len(model.commits) == 5
        assert {*model.branches} == {"main", "a/trial"}
        hub.requests.clear()

        def candidates(revision: str | None) -> object:
            loaded = Translator.from_pretrained("someone/model", revision=revision)
            assert loaded.translate(SENTENCES, length_candidates=3) == ours.translate(SENTENCES)
            return loaded.decoding["length_candidates"]

        assert [candidates(r) for r in (first, second, None, "main", "a/trial")] == [5, 2, 2, 2, 3]
        assert {r.split("/")[-1] for r in hub.requests if "/resolve/" in r} == {*FILES}
        stored = json.loads(model.files("a/trial")["config.json"])
        assert stored["decoding"]["length_candidates"] == 3
        with pytest.raises(UserError, match=r"did not give a model .*404.*Revision Not Found"):
            Translator.from_pretrained("someone/model", revision="none")
        with monkeypatch.context() as nobody:
            nobody.delenv("HF_TOKEN")
            with pytest.raises(UserError, match=r"did not give a model .*401"):
                Translator.from_pretrained("someone/other", revision="main")


def test_mistakes_are_explained(
    subwords: Subwords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = translator(subwords)
    with local_hub(tmp_path, monkeypatch) as hub:
        with pytest.raises(UserError, match=r"did not take model: 404.*give a name such as owner/"):
            ours.push_to_hub("model")
        with monkeypatch.context() as nobody:
            nobody.delenv("HF_TOKEN")
            with pytest.raises(UserError, match=r"did not take model: .*401.*hf auth login"):
                ours.push_to_hub("model")
        hub.silent = True
        with pytest.raises(UserError, match=r"did not take someone/model: .*disconnected"):
            ours.push_to_hub("someone/model")
        with pytest.raises(UserError, match=r"did not give a model of that name: \S"):
            Translator.from_pretrained("someone/model", revision="main")
    with pytest.raises(UserError, match="is a folder here, which has no revisions"):
        Translator.from_pretrained(tmp_path, revision="main")
