"""Systems: one paper, one file.

A system is what a paper proposes: how it is built on the common Transformer, what a training step
computes, how it decodes. Every file of this folder is one, found by its name; so is any module of
your own that ``model.system`` names. A system file has

    PAPER      where it was proposed, and the BLEU reported there
    Options    frozen dataclass: the section of the YAML that is called like the system;
               ``needs_end`` True: it changes over the run, and needs to know its end;
               ``teacher``: the folder of a model that training needs, see System.learn_from;
               ``references`` above 1: it learns from several targets of a source, EOS between them
    Decoding   frozen dataclass: the section ``decoding`` of the YAML, and options of `translate`;
               as text it says how the system decodes
    Model      a :class:`System`, such as a :class:`LengthSystem`

The trainer, the translator, saved models, evaluation and the server ask the system; none of them
knows which one it is.
"""

import pkgutil
import sys
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from oaxe.model.length import LengthPredictor, with_length_in_front
from oaxe.model.masking import IGNORED, decoder_inputs
from oaxe.model.statistics import Statistics
from oaxe.model.transformer import Transformer, initialise
from oaxe.search.hypothesis import LENGTH_PENALTIES, Hypothesis
from oaxe.search.one_pass import translate_lengths
from oaxe.search.replay import Call, compute
from oaxe.support.config import to_mapping
from oaxe.support.errors import UserError, did_you_mean
from oaxe.text.plans import Room
from oaxe.text.symbols import PAD

PARTS = ("PAPER", "Options", "Decoding", "Model")


@dataclass(frozen=True)
class Paper:
    title: str
    url: str
    # BLEU that it reports for one pass, by training data ("raw", "distilled") and data set.
    bleu: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class Example(NamedTuple):
    """One batch, ready for a training step; made before the step so that words can be counted."""

    source: Tensor  # (batch, source_len)
    inputs: Tensor  # (batch, positions): what the decoder reads
    mask: Tensor  # (batch, positions) bool: True for real positions
    target: Tensor  # (batch, targets): IGNORED where there is no loss
    length: Tensor  # (batch,): words of each target; IGNORED for a row without a sentence

    @classmethod
    def of(cls, source: Tensor, inputs: Tensor, wanted: Tensor, target: Tensor) -> "Example":
        """``inputs`` has PAD where there is no position; ``target`` is the batch's own.

        A row without a sentence, which even lacks its EOS, is nothing but padding.
        """
        empty = source[:, :1] == PAD
        inputs, wanted = inputs.masked_fill(empty, PAD), wanted.masked_fill(empty, IGNORED)
        length = (target != PAD).sum(1).masked_fill(empty[:, 0], IGNORED)
        return cls(source, inputs, inputs != PAD, wanted, length)

    @property
    def n_words(self) -> Tensor:
        """How many words the loss is computed over; on the device."""
        return (self.target != IGNORED).sum()

    @property
    def n_sentences(self) -> Tensor:
        return (self.length != IGNORED).sum()


class Progress(NamedTuple):
    """How far training has come.

    A step may be recorded as a CUDA graph and replayed: the values of tensors are read anew each
    time, whereas the phase is fixed for a recording.
    """

    epoch: Tensor  # done so far, with the part of the present one; float64 without dimensions
    epochs: Tensor  # until the end, likewise; infinity if there is none
    phase: Hashable = None  # see System.phase

    @property
    def share(self) -> Tensor:
        """What is done of the training, 0 to 1; 0 for a training without end."""
        return (self.epoch / self.epochs).clamp(max=1.0)

    def between(self, start: float, end: float) -> Tensor:
        """A value that changes linearly from the start of the training to its end."""
        return start + (end - start) * self.share


class System(nn.Module):
    """What the rest of the package asks of a system. ``forward`` is its training step.

    Args:
        architecture: arguments of :class:`Transformer`, but for those that the system decides.
        options: an instance of the system's ``Options``.
    """

    transformer: Transformer  # made by the system's own __init__

    translates: ClassVar[bool] = True  # False: a language model
    recordable: ClassVar[bool] = True  # a training step can be a CUDA graph
    in_bands: ClassVar[bool] = False  # sentences of a packed batch must be of similar lengths
    refills: ClassVar[bool] = False  # translate takes any number of sentences, and batch_tokens
    no_ncm: ClassVar[str] = ""  # why NCM is not defined, if it is not
    chooses_decoding: ClassVar[bool] = False  # see choices
    # Modules that only training needs: a finished model is saved without them, and has None there.
    training_parts: ClassVar[tuple[str, ...]] = ()

    def __init__(self, architecture: Mapping[str, Any], options: Any) -> None:
        super().__init__()
        self.architecture, self.options = dict(architecture), options

    def example(self, source: Tensor, target: Tensor) -> Example:
        """Decoder inputs and loss targets; random masks come from torch's own generator."""
        raise NotImplementedError

    def room(self, rows: int, source: int, target: int) -> Room | None:
        """The most tokens that encoder and decoder read of a batch without its padding.

        Args:
            rows: sentences of the batch, at most.
            source: tokens of all sources together, their EOS included, at most.
            target: tokens of all targets, without EOS, at most.

        None: batches have to be padded.
        """
        return None

    def forward(self, example: Example, progress: Progress) -> tuple[Tensor, Statistics]:
        """The summed loss, and statistics for the log.

        Statistics are tensors without dimensions, see :mod:`oaxe.model.statistics`; one of them is
        called "loss": that of the words, which validation reports, too.
        """
        raise NotImplementedError

    def learn_from(self, teacher: "System") -> None:
        """Take the model that the option ``teacher`` names, before training; it is not saved."""
        raise NotImplementedError

    def phase(self, epoch: float, epochs: float) -> Hashable:
        """What a step computes at this time, where that changes: each phase is recorded anew."""
        return None

    def advice(self, means: Mapping[str, float], *, from_scratch: bool) -> str:
        """A warning that is due, or nothing. ``means`` are statistics: none before training."""
        return ""

    def translate(
        self, source: Tensor, decoding: Any, call: Call = compute
    ) -> list[list[Hypothesis]]:
        """Hypotheses of each sentence, best first.

        Args:
            source: ``(batch, source_len)``, EOS included, PAD on the right.
            decoding: an instance of the system's ``Decoding``.
            call: calls functions of the system and tensors; see :mod:`oaxe.search.replay`.

        A system that ``refills`` also takes ``batch_tokens``: of many sentences, the next ones take
        over from those that are done, see :func:`~oaxe.search.beam.beam_search`.
        """
        raise NotImplementedError

    def rows(self, decoding: Any) -> int:
        """How many hypotheses of a sentence are decoded side by side, for the size of batches."""
        return 1

    def choices(self, decoding: Any) -> Mapping[str, Sequence[float]]:
        """Values of its options that are worth trying; by default of ``length_penalty``.

        The trainer chooses one option after the other by BLEU on validation text, in this order, if
        ``validation.choose_decoding`` says so, and else if the system ``chooses_decoding``.
        """
        ranks_by_length = hasattr(decoding, "length_penalty")
        return {"length_penalty": LENGTH_PENALTIES} if ranks_by_length else {}

    def weights_from(self, other: "System") -> dict[str, Tensor]:
        """The weights of another model that it may start from.

        Those that fit by name and shape are taken: a system changes only what would fit, but means
        something else there.
        """
        return other.state_dict()

    @property
    def name(self) -> str:
        """What ``model.system`` says: the name of a built-in system, or a module."""
        return type(self).__module__.removeprefix(f"{__name__}.")

    @property
    def decoding_type(self) -> type[Any]:
        """The ``Decoding`` of its file."""
        return sys.modules[type(self).__module__].Decoding

    @property
    def max_length(self) -> int:
        return self.transformer.max_length

    @property
    def vocab_size(self) -> int:
        return self.transformer.output_weight.shape[0]

    @property
    def device(self) -> torch.device:
        return self.transformer.output_weight.device

    @property
    def n_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def description(self) -> dict[str, Any]:
        """Enough to build the same model again, as JSON."""
        options = to_mapping(self.options)
        return {"system": self.name, "architecture": self.architecture, "options": options}


class LengthSystem(System):
    """Predicts the length of the target, and then all of its words in one pass, from masks."""

    def __init__(self, architecture: Mapping[str, Any], options: Any) -> None:
        super().__init__(architecture, options)
        self.transformer = Transformer(**architecture, causal=False)
        self.length = LengthPredictor(architecture["dim"], architecture["max_length"])

    def example(self, source: Tensor, target: Tensor) -> Example:
        inputs, wanted = decoder_inputs(target, "unobserved")
        return Example.of(source, inputs, wanted, target)

    def translate(
        self, source: Tensor, decoding: Any, call: Call = compute
    ) -> list[list[Hypothesis]]:
        return translate_lengths(self, source, **vars(decoding), call=call)

    def rows(self, decoding: Any) -> int:
        return decoding.length_candidates

    def weights_from(self, other: System) -> dict[str, Tensor]:
        """Moves the positions of a source that had no LENGTH in front by one."""
        weights = other.state_dict()
        if not any(isinstance(part, LengthPredictor) for part in other.modules()):
            positions = "transformer.source_positions.weight"
            weights[positions] = with_length_in_front(weights[positions])
        return weights


def built_in() -> list[str]:
    """Names of the systems of this package."""
    return [module.name for module in pkgutil.iter_modules(__path__)]


def find(name: str, trusted: Collection[str] | None = None) -> ModuleType:
    """The file of a system: of this package, or a module of the user's.

    Args:
        name: such as ``"cmlm"``, or ``"my_package.my_module"``.
        trusted: modules outside this package that may be imported; None: all, as it is the user's
            own configuration that names one. A saved model never decides what is imported.
    """
    if name in built_in():
        return import_module(f"{__name__}.{name}")
    if trusted is not None and name not in trusted:
        raise UserError(
            f"the system {name!r} is not part of oaxe, and a model cannot cause an import; if you "
            f"trust the module, name it: --system {name}, or systems=[{name!r}] in Python"
        )
    if "." not in sys.path[:1] and "" not in sys.path[:1]:
        sys.path.insert(0, "")  # as for `python -m`: modules in the current folder
    try:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ModuleNotFoundError(name=name)
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # found, but something that it needs is missing
        raise UserError(
            f"there is no system {name!r}{did_you_mean(name, built_in())}; there are "
            f"{', '.join(built_in())}; a module of your own must be importable from here"
        ) from None
    missing = [part for part in PARTS if not hasattr(module, part)]
    if missing:
        raise UserError(f"{module.__file__} is no system: it lacks {', '.join(missing)}")
    return module


def section(name: str) -> str:
    """The name of the section that holds the options of a system."""
    return name.rpartition(".")[2]


def build(name: str, architecture: Mapping[str, Any], options: Any) -> System:
    """A new model; its weights come from torch's random numbers."""
    model: System = find(name).Model(architecture, options)
    initialise(model)
    return model
