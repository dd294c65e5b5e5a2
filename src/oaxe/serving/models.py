"""The models of a server, and which of them a request is for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from oaxe.decoding.translator import Option, Translation, Translator
from oaxe.serving.errors import RefusedError
from oaxe.support.config import to_mapping
from oaxe.support.errors import UserError, did_you_mean
from oaxe.text.languages import check_code, is_language, language_name

LONGEST_PIECE = 16  # characters of a subword that SentencePiece learns, at most
LONGEST_FORM = 18  # characters that one may become when it is normalised; none of ASCII does


@dataclass(frozen=True)
class Model:
    """A translator with a name, and how it decodes."""

    name: str
    source: str
    target: str
    translator: Translator = field(compare=False, repr=False)
    decoding: dict[str, Option] = field(compare=False, default_factory=dict)

    def translate(
        self,
        sentences: Sequence[str],
        *,
        most: int | None = None,
        batch_tokens: int = 16_384,
        bf16: bool = False,
    ) -> list[list[Translation]]:
        how: dict[str, Any] = {"batch_tokens": batch_tokens, "bf16": bf16, **self.decoding}
        return self.translator.translate_scored(sentences, most=most, **how)

    def refuse_long(self, sentences: Sequence[str]) -> None:
        """Refuse sentences that the model could translate only in part."""
        limit = self.translator.system.max_length
        for sentence in sentences:  # first by what costs nothing to count
            if len(sentence) > LONGEST_PIECE * limit:
                raise too_long(sentence, f"{len(sentence)} characters", limit)
        unsure = [s for s in sentences if most_subwords(s) > limit]
        tokens = self.translator.subwords.encode([s.strip() for s in unsure])
        for sentence, ids in zip(unsure, tokens, strict=True):
            if len(ids) > limit:
                raise too_long(sentence, f"{len(ids)} subwords", limit)

    @property
    def about(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "source": self.source,
            "target": self.target,
            "system": self.translator.system.name,
            "decoding": self.decoding,
            "device": str(self.translator.system.device),
        }


def most_subwords(sentence: str) -> int:
    """No sentence has more: each character its own, and a space in front.

    Example:
        >>> most_subwords("a dog"), most_subwords("für")
        (6, 21)
    """
    others = len(sentence.encode()) - len(sentence)  # at least one for each that is not ASCII
    return 1 + len(sentence) + others * (LONGEST_FORM - 1)


def too_long(sentence: str, length: str, limit: int) -> RefusedError:
    return RefusedError(
        422,
        f"a sentence has {length}, the model reads {limit} subwords; split it: "
        f"{sentence[:40].strip()!r}...",
    )


class Models:
    """Several models, chosen by name or by languages; names differ."""

    def __init__(self, models: Sequence[Model]) -> None:
        self.by_name = {model.name: model for model in models}
        if len(self.by_name) < len(models):
            names = ", ".join(model.name for model in models)
            raise UserError(f"two models have the same name: {names}; give --model NAME=PATH")

    def choose(self, name: str | None, source: str | None, target: str | None) -> Model:
        """The model of that name, or the first that is for these languages.

        A language that is not given fits all, if there is only one model for the others.
        """
        if name is not None and name not in self.by_name:
            hint = did_you_mean(name, self.by_name) or f"; there are {', '.join(self.by_name)}"
            raise RefusedError(400, f"there is no model {name!r}{hint}")
        models = [model for model in self.by_name.values() if name in (None, model.name)]
        source = "" if source in (None, "auto") else source
        fitting = [
            model
            for model in models
            if is_language(model.source, source or "") and is_language(model.target, target or "")
        ]
        if not fitting:
            pairs = ", ".join(f"{model.source or '?'} to {model.target or '?'}" for model in models)
            wanted = f"{source or 'any language'} to {target or 'any language'}"
            raise RefusedError(400, f"no model translates {wanted}; there are {pairs}")
        if len(fitting) > 1 and not (source and target):
            names = ", ".join(model.name for model in fitting)
            raise RefusedError(400, f"which model? give source and target, or one of {names}")
        return fitting[0]

    @property
    def are_exported(self) -> bool:
        """Whether batches share the cores: while one ends or begins, another is computed."""
        return all(model.translator.is_exported for model in self.by_name.values())

    @property
    def languages(self) -> list[dict[str, Any]]:
        """As LibreTranslate lists them: each source with its targets."""
        targets: dict[str, list[str]] = {}
        for model in self.by_name.values():
            if model.source and model.target:
                targets.setdefault(model.source, []).append(model.target)
        known = dict.fromkeys([*targets, *(t for ts in targets.values() for t in ts)])
        return [
            {
                "code": code,
                "name": language_name(code),
                "targets": sorted(set(targets.get(code, ()))),
            }
            for code in known
        ]


def named(given: str | None, path: str, translator: Translator, **options: Option) -> Model:
    """A model with a name: the given one, its languages, or the end of its path.

    A given name of two languages, such as ``en-de``, also says the languages of a model that does
    not know them.
    """
    source, target = translator.languages
    pair = (given or "").split("-")
    if not (source and target) and len(pair) == 2:
        try:
            check_code(pair[0])
            check_code(pair[1])
        except UserError:
            pass
        else:
            source, target = pair
    decoding = to_mapping(translator.decoding_with(**options))
    name = given or (f"{source}-{target}" if source and target else path.rstrip("/").split("/")[-1])
    return Model(name, source, target, translator, decoding)


def split_name(given: str) -> tuple[str | None, str]:
    """NAME=MODEL in two.

    Example:
        >>> split_name("en-de=runs/mine"), split_name("runs/mine"), split_name("runs/lr=3")
        (('en-de', 'runs/mine'), (None, 'runs/mine'), (None, 'runs/lr=3'))
    """
    name, equals, path = given.partition("=")
    return (name, path) if equals and name and path and "/" not in name else (None, given)
