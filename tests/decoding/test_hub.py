"""The card of a model as the hub reads it, and the way there and back."""

import inspect
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import HfApi, ModelCard

from oaxe.decoding.hub import CARD, MARK, model_card
from oaxe.decoding.saved import FILES
from oaxe.decoding.translator import Translator
from oaxe.support.errors import UserError
from oaxe.text.subwords import Subwords
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


class Hub:
    """Commits in folders. Calls must have arguments that the installed huggingface_hub takes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.private, self.branches = folder, False, {"main": ""}
        real = huggingface_hub.snapshot_download

        def snapshot_download(*given: Any, **options: Any) -> str:
            return self.snapshot_download(
                **inspect.signature(real).bind(*given, **options).arguments
            )

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        for name in ("create_repo", "create_branch", "file_exists", "upload_folder"):
            self.stand_in(name, monkeypatch)

    def stand_in(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        signature = inspect.signature(getattr(HfApi, name))

        def call(*given: Any, **options: Any) -> Any:
            arguments = signature.bind(*given, **options).arguments
            arguments.pop("self")
            if "/" not in arguments["repo_id"]:
                raise OSError("401: who are you?")
            return getattr(self, name)(**arguments)

        monkeypatch.setattr(HfApi, name, call)

    def create_repo(self, repo_id: str, private: bool | None, exist_ok: bool) -> None:
        assert exist_ok
        self.private = bool(private)

    def create_branch(self, repo_id: str, branch: str, exist_ok: bool) -> None:
        assert exist_ok
        self.branches.setdefault(branch, self.branches["main"])

    def commit(self, revision: str | None) -> Path:
        revision = revision or "main"
        return self.folder / (self.branches.get(revision) or revision)

    def file_exists(self, repo_id: str, filename: str, revision: str | None) -> bool:
        return (self.commit(revision) / filename).is_file()

    def upload_folder(
        self, repo_id: str, folder_path: Path, revision: str | None, allow_patterns: list[str],
        commit_message: str,
    ) -> SimpleNamespace:  # fmt: skip
        number = f"commit{len(list(self.folder.iterdir()))}"
        if (before := self.commit(revision)).is_dir():
            shutil.copytree(before, self.folder / number)
        (self.folder / number).mkdir(exist_ok=True)
        for name in allow_patterns:
            shutil.copy(folder_path / name, self.folder / number)
        self.branches[revision or "main"] = number
        return SimpleNamespace(oid=number)

    def snapshot_download(
        self, repo_id: str, revision: str | None, allow_patterns: list[str]
    ) -> str:
        if not self.commit(revision).is_dir():
            raise OSError(f"404: no revision {revision}")
        return str(self.commit(revision))


def test_to_the_hub_and_back(
    subwords: Subwords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hub").mkdir()
    hub = Hub(tmp_path / "hub", monkeypatch)
    ours = translator(subwords)
    first = ours.push_to_hub("someone/model", private=True)
    assert hub.private
    assert {path.name for path in hub.commit(None).iterdir()} == {*FILES, CARD}
    assert 'from_pretrained("someone/model")' in card_of(hub.commit(None)).text
    (hub.commit(None) / CARD).write_text("My own words.")
    ours.change_decoding(length_candidates=2)
    second = ours.push_to_hub("someone/model")
    assert (hub.commit(None) / CARD).read_text() == "My own words."
    ours.change_decoding(length_candidates=3)
    ours.push_to_hub("someone/model", revision="trial")

    def candidates(revision: str | None) -> object:
        loaded = Translator.from_pretrained("someone/model", revision=revision)
        assert loaded.translate(SENTENCES, length_candidates=3) == ours.translate(SENTENCES)
        return loaded.decoding["length_candidates"]

    assert [candidates(r) for r in (first, second, None, "main", "trial")] == [5, 2, 2, 2, 3]
    stored = json.loads((hub.commit("trial") / "config.json").read_text())
    assert stored["decoding"]["length_candidates"] == 3
    with pytest.raises(UserError, match=r"did not give a model .*404: no revision none"):
        Translator.from_pretrained("someone/model", revision="none")


def test_mistakes_are_explained(
    subwords: Subwords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Hub(tmp_path, monkeypatch)
    with pytest.raises(UserError, match=r"did not take model: 401.*hf auth login"):
        translator(subwords).push_to_hub("model")
    with pytest.raises(UserError, match="is a folder here, which has no revisions"):
        Translator.from_pretrained(tmp_path, revision="main")
