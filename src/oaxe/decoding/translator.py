"""A trained model with its subwords: text in, text out.

A model that was exported for a CPU does without torch: it is imported where it is needed.
"""

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any

from oaxe.decoding.box import model_in_the_box
from oaxe.decoding.saved import download, load_folder, save_folder
from oaxe.search.batches import batches
from oaxe.search.hypothesis import Hypothesis, Positions, Said
from oaxe.support.config import build, to_mapping
from oaxe.support.errors import UserError
from oaxe.text.sentences import Paragraphs
from oaxe.text.subwords import Subwords
from oaxe.text.symbols import EOS, PAD

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from oaxe.engine.engine import Engine
    from oaxe.search.replay import Replays
    from oaxe.systems import System

Option = bool | int | float | str | None

COUNTING = Lock()  # the threads that translate; not of a Translator, which may be copied


@dataclass(frozen=True)
class Translation:
    text: str
    score: float  # log-probability, normalised by length
    length: int  # positions of the decoder, see Hypothesis
    log_probability: float
    tokens: list[int]  # the subwords that the text was joined from
    said: Said = field(default=None, compare=False, repr=False)

    @property
    def positions(self) -> Positions | None:
        """What each position of the decoder says; None where that is not known."""
        return self.said() if callable(self.said) else self.said


class Translator:
    """Translates text with a trained model.

    Args:
        system: the model, on the device to use; see :mod:`oaxe.systems`. Or an
            :class:`~oaxe.engine.engine.Engine`.
        subwords: those that it was trained with.
        languages: names of source and target, for the reader.
        decoding: options that this model should be decoded with unless :meth:`translate` is told
            otherwise: fields of the system's ``Decoding``; the others have its defaults.
        cuda_graphs: on a GPU, record the passes that a sentence alone needs, or the steps of an
            autoregressive model for any number of sentences, and replay them from then on: many
            times faster, but slower for the first sentence of a length, and their memory is kept.
            An attribute, too.
    """

    def __init__(
        self,
        system: "System | Engine",
        subwords: Subwords,
        *,
        languages: tuple[str, str] = ("", ""),
        decoding: Mapping[str, Option] | None = None,
        cuda_graphs: bool = True,
    ) -> None:
        self.system: Any = system
        self.subwords = subwords
        self.languages = languages
        self.decoding: dict[str, Option] = {}
        self._checked: tuple[str, Any] = "", None  # options and the Decoding that they are
        self.change_decoding(**(decoding or {}))
        self.cuda_graphs = cuda_graphs
        self._replays: Replays | None = None
        self._threads, self._was_training = 0, False
        n_rows = system.vocab_size
        if n_rows != subwords.vocab_size:
            raise UserError(
                f"there are {subwords.vocab_size} subwords, but the model knows {n_rows}; "
                "use the subwords that the model was trained with"
            )

    @classmethod
    def from_pretrained(
        cls,
        path: Path | str | None = None,
        *,
        device: "torch.device | str" = "cpu",
        systems: Collection[str] = (),
        threads: int | None = None,
        revision: str | None = None,
    ) -> "Translator":
        """Load what :meth:`save_pretrained` or ``oaxe export`` wrote: a folder, or a hub's name.

        Args:
            path: the folder or name. Default: the model in the box, English to German.
            device: where to translate.
            systems: modules with systems of your own that the model may need. Nothing else outside
                this package is ever imported, whatever the folder says.
            threads: of a model that was exported for a CPU. Default: as many as there are cores.
            revision: a branch, tag or commit of a model on the hub. Default: the newest.
        """
        path = path or model_in_the_box()
        if revision is not None:
            path = download(str(path), revision)
        system: Any
        system, subwords, config = load_folder(path, systems, threads)
        source, target = config["languages"]
        return cls(
            system.to(device),
            Subwords.load(subwords),
            languages=(source, target),
            decoding=config["decoding"],
        )

    def save_pretrained(self, folder: Path | str) -> None:
        """Write the folder that :mod:`oaxe.decoding.saved` describes."""
        self._save(Path(folder))

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool | None = None,
        revision: str | None = None,
        message: str = "A translator, saved by oaxe",
    ) -> str:
        """Put the model and its card on the Hugging Face hub; the id of the commit.

        Log in first with ``hf auth login``. A card that is there already stays.

        Args:
            name: owner and model, ``"owner/model"``; made if there is none.
            private: whether a new one is private. Default: as the owner has set it.
            revision: the branch; made if there is none. Default: the main one.
            message: of the commit.
        """
        from oaxe.decoding.hub import push

        with TemporaryDirectory() as folder:
            self._save(Path(folder), name=name)
            return push(Path(folder), name, private, revision, message)

    def _save(self, folder: Path, **card: str) -> None:
        from oaxe.decoding.hub import model_card, write_card

        if self.is_exported:
            raise UserError("an exported model is saved already: copy its folder")
        description = {"languages": list(self.languages), "decoding": self.decoding}
        save_folder(folder, self.system, self.subwords, description)
        write_card(folder, model_card(self.system, self.languages, self.decoding, **card))

    def decoding_with(self, **options: Option) -> Any:
        """The system's ``Decoding``: the defaults of this translator, changed by the options."""
        wanted = {**self.decoding, **options}
        checked, how = self._checked
        if checked == repr(wanted):  # the checks would take a sixth of the time of one sentence
            return how
        how = build(self.system.decoding_type, wanted, f"decoding with {self.system.name}")
        if self.is_exported:
            self.system.check(how)
        if lm := getattr(how, "lm", None):
            from oaxe.text.ngram_files import check_subwords

            check_subwords(Path(lm), self.subwords)
        self._checked = repr(wanted), how
        return how

    def change_decoding(self, **options: Option) -> None:
        """Set defaults for all sentences to come."""
        self.decoding = to_mapping(self.decoding_with(**options))

    def translate(
        self,
        sentences: Sequence[str],
        *,
        batch_tokens: int = 16384,
        bf16: bool = False,
        first_line: int | Sequence[int] = 1,
        **options: Option,
    ) -> list[str]:
        """The best translation of each sentence, in the order of the input.

        Empty lines stay empty. Sentences of more than ``max_length`` subwords are cut there
        and named in a warning.

        Args:
            sentences: plain text.
            batch_tokens: the most source tokens of a batch, padding included, times the number of
                hypotheses that each sentence is decoded into. It changes the speed, and how numbers
                are rounded, which can tip a close decision.
            bf16: compute in bfloat16 (autocast).
            first_line: number of the first sentence in warnings, for input that comes in pieces;
                or the number of each.
            **options: fields of the system's ``Decoding`` to change for this call.
        """
        found = self._search(sentences, batch_tokens, bf16, first_line, options)
        if any("\n" in sentence.strip() for sentence in sentences):
            warnings.warn(
                "a sentence has a line break; models read one sentence a line: "
                "translate_paragraphs splits texts, and puts their translations together",
                stacklevel=2,
            )
        return self.subwords.decode([hypotheses[0].tokens for hypotheses in found])

    def translate_scored(
        self,
        sentences: Sequence[str],
        *,
        batch_tokens: int = 16384,
        bf16: bool = False,
        first_line: int | Sequence[int] = 1,
        most: int | None = None,
        **options: Option,
    ) -> list[list[Translation]]:
        """Hypotheses of each sentence with their scores, best first; see :meth:`translate`.

        Args:
            most: how many of each sentence. Default: all.
        """
        found = self._search(sentences, batch_tokens, bf16, first_line, options)
        found = [hypotheses[:most] for hypotheses in found]
        texts = iter(self.subwords.decode([h.tokens for hs in found for h in hs]))
        return [
            [
                Translation(next(texts), h.score, h.length, h.log_probability, h.tokens, h.said)
                for h in hypotheses
            ]
            for hypotheses in found
        ]

    def translate_paragraphs(self, texts: Sequence[str], **how: Any) -> list[str]:
        """Each text with all its sentences translated, see :mod:`oaxe.text.sentences`.

        Args:
            texts: plain text of any number of sentences; line breaks stay.
            **how: arguments of :meth:`translate`.
        """
        check_sentences(texts)
        paragraphs = Paragraphs(texts)
        return paragraphs.filled(self.translate(paragraphs.sentences, **how), self.languages[1])

    def _search(
        self,
        sentences: Sequence[str],
        batch_tokens: int,
        bf16: bool,
        first_line: int | Sequence[int],
        options: Mapping[str, Option],
    ) -> list[list[Hypothesis]]:
        check_sentences(sentences)
        if not self.system.translates:
            raise UserError(
                "this is a language model, which cannot translate; give a translator, "
                "or the language model to oaxe evaluate --lm"
            )
        how = self.decoding_with(**options)
        tokens = self._tokens(sentences, first_line)
        found = [[Hypothesis([], 0.0, 0)] for _ in sentences]
        refills = self.system.refills
        recorded = self.cuda_graphs and is_on_gpu(self.system.device)
        recorded = recorded and (refills or sum(map(bool, tokens)) == 1)
        as_it_likes = self.is_exported or (recorded and refills)  # the system forms batches itself
        together = None if as_it_likes else max(1, batch_tokens // self.system.rows(how))
        bound = {"batch_tokens": batch_tokens} if refills else {}
        with self._computing(bf16):
            for batch in batches([len(t) for t in tokens], together):
                rows = [tokens[i] for i in batch]
                if self.is_exported:
                    hypotheses = self.system.translate(rows, how)
                else:
                    source = padded(rows).to(self.system.device)
                    hypotheses = self._decode(source, how, recorded, **bound)
                for i, of_sentence in zip(batch, hypotheses, strict=True):
                    found[i] = of_sentence
        return found

    @property
    def is_exported(self) -> bool:
        """Whether the model is one for a CPU, which computes without torch."""
        return hasattr(self.system, "precision")

    @contextmanager
    def _computing(self, bf16: bool) -> Iterator[None]:
        if self.is_exported:
            if bf16:
                raise UserError(
                    f"an exported model computes in its own precision, {self.system.precision}; "
                    "leave out --bf16"
                )
            yield
            return
        from oaxe.support.devices import half_precision

        with self.evaluating(), half_precision(self.system.device.type, bf16):
            yield

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """No dropout, until the last of the threads that are in here has left."""
        with COUNTING:
            # eval() visits all modules: too long a walk for every sentence
            if self.system.training:
                self.system.eval()
                self._was_training = True
            self._threads += 1
        try:
            yield
        finally:
            with COUNTING:
                self._threads -= 1
                if self._was_training and not self._threads:
                    self.system.train()
                    self._was_training = False

    def _decode(
        self, source: "Tensor", decoding: Any, recorded: bool, **bound: int
    ) -> list[list[Hypothesis]]:
        import torch

        from oaxe.search.replay import REPLAYING, Replays

        if self._replays and not (self.cuda_graphs and self._replays.are_of(self.system)):
            self._replays = None
        translate = partial(self.system.translate, source, decoding, **bound)
        if not recorded:
            return translate()
        with REPLAYING:
            self._replays = self._replays or Replays(self.system)
            try:
                return translate(call=self._replays)
            except torch.OutOfMemoryError:
                self._replays = None
                if self.system.refills:  # as much would be searched at a time without graphs
                    raise
                failure = "too little memory"
            except RuntimeError as error:
                failure = str(error)
            self._replays = None  # its memory may be needed
        # If that fails as well, graphs are not the reason.
        hypotheses = translate()
        self.cuda_graphs = False
        warnings.warn(
            f"CUDA graphs failed, translating without them, more slowly: {failure}", stacklevel=4
        )
        return hypotheses

    def _tokens(self, sentences: Sequence[str], first_line: int | Sequence[int]) -> list[list[int]]:
        """Subwords with EOS behind; nothing at all for an empty line."""
        limit = self.system.max_length
        tokens = self.subwords.encode([sentence.strip() for sentence in sentences])
        lines = count(first_line) if isinstance(first_line, int) else first_line
        long = [(n, len(t)) for n, t in zip(lines, tokens, strict=False) if len(t) > limit]
        if long:
            names = ", ".join(f"line {number} ({length})" for number, length in long[:10])
            more = f" and {len(long) - 10} more" if len(long) > 10 else ""
            warnings.warn(
                f"cut after {limit} subwords, the most this model can read: {names}{more}. "
                "Split these sentences to translate all of them",
                stacklevel=4,
            )
        return [[*t[:limit], EOS] if t else [] for t in tokens]


def check_sentences(sentences: object) -> None:
    """Raises UserError for what is no list of strings."""
    if isinstance(sentences, str):
        raise UserError("translate takes a list of sentences, got one string; put it in a list")
    if not isinstance(sentences, Collection):  # an iterator, which can be read only once, is none
        raise UserError(f"translate takes a list of sentences, got {sentences!r}; give it a list")
    for number, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            raise UserError(
                f"translate takes a list of sentences, got {sentence!r} as sentence {number} "
                "(counted from 0); give it strings"
            )


def is_on_gpu(device: "torch.device | str") -> bool:
    return not isinstance(device, str) and device.type == "cuda"


def padded(tokens: Sequence[Sequence[int]]) -> "Tensor":
    """``(batch, longest)``, PAD on the right."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    return pad_sequence([torch.tensor(t) for t in tokens], batch_first=True, padding_value=PAD)
