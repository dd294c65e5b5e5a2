"""Every setting of a training run: its default and what it means (``oaxe config show``)."""

from dataclasses import dataclass
from typing import Literal

from oaxe.commands.options import MOST_LENGTH_PENALTY
from oaxe.support.config import flatten, option, required, to_mapping
from oaxe.support.errors import UserError

# As in oaxe.model.masking, which needs torch: configurations are checked without it.
Masking = Literal["unobserved", "partial-all", "partial-masks"]


@dataclass(frozen=True)
class DataSettings:
    folder: str = required("prepared folder, made by `oaxe prepare`")
    update_tokens: int = option(131_072, "target tokens in one update, over all GPUs")
    batch_tokens: int = option(16_384, "places, padding included, in one batch on one device")
    mix_lengths: bool = option(False, "batches of any lengths: more padding, steadier updates")


@dataclass(frozen=True)
class ModelSettings:
    kind: Literal["nat", "at", "ctc", "lm"] = option(
        "nat",
        "nat: all words at once; at: one after the other; ctc: nat with blanks; "
        "lm: at without a source, a language model of the target side",
    )
    size: Literal["tiny", "small", "base", "big", "12-1"] = option("base", "see docs/training.md")
    norm: Literal["post", "pre"] = option("post", "layer norm after or before each block")
    positions: Literal["start", "both"] = option(
        "start", "both: counted from the end of the sentence as well; nat and ctc"
    )
    dropout: float = option(0.3, "share of activations dropped while training")
    max_length: int = option(256, "longest sentence, in subwords")
    upsample: int = option(2, "ctc: places for each source subword")


@dataclass(frozen=True)
class LossSettings:
    name: Literal["xe", "oaxe", "axe", "ctc"] = option("xe", "training loss")
    inputs: Masking | None = option(
        None,
        "nat: decoder input and the tokens that count; null: partial-masks for xe, or unobserved",
    )
    label_smoothing: float = option(0.1, "xe and oaxe")
    truncation: float = option(0.0, "oaxe: drop tokens whose probability is not above this")
    delta: float = option(1.0, "axe: penalty factor for a skipped target")
    length_weight: float = option(1.0, "nat: weight of the length loss")
    annealing: bool = option(
        False, "start with xe and change to the loss by T_m, until train.epochs or train.steps"
    )
    annealing_c: float = option(16.0, "c of T_m")
    annealing_lambda: float = option(0.95, "lambda of T_m")

    @property
    def masking(self) -> Masking:
        """``inputs``, or the paper's choice for this loss."""
        return self.inputs or ("partial-masks" if self.name == "xe" else "unobserved")


@dataclass(frozen=True)
class OptimSettings:
    lr: float = option(5e-4, "peak learning rate")
    warmup: int = option(10_000, "updates of linear warm-up, before decay")
    decay: Literal["inverse-sqrt", "linear"] = option(
        "inverse-sqrt", "linear: to zero at the end of train.epochs or train.steps"
    )
    betas: tuple[float, float] = option((0.9, 0.999), "Adam")
    eps: float = option(1e-6, "Adam")
    weight_decay: float = option(0.01, "decoupled, as in AdamW")
    clip: float = option(0.0, "largest gradient norm; 0 does not clip")


@dataclass(frozen=True)
class ValidationSettings:
    every: int = option(0, "updates between validations; 0: once an epoch")
    length_candidates: int = option(5, "nat: lengths tried for each sentence")
    deduplicate: bool = option(True, "nat: collapse equal neighbours")
    beam: int = option(1, "at: beam width, 1 is greedy")
    length_penalty: float = option(1.0, "nat and at: scores are sums over the length to this power")
    max_sentences: int = option(0, "validate on the first N sentences only; 0: all of them")
    keep: int = option(5, "best checkpoints by BLEU that are kept")
    average: int = option(5, "best checkpoints that are averaged into the final model")
    patience: int = option(0, "stop after N validations without a better BLEU; 0: never")


@dataclass(frozen=True)
class TrainSettings:
    steps: int = option(0, "stop after this many updates; 0: no limit")
    epochs: int = option(0, "stop after this many epochs; 0: no limit")
    minutes: float = option(0.0, "stop after this much time, validation not counted; 0: no limit")
    init_from: str | None = option(
        None, "start from the weights of this run or model folder; nat also from those of an at"
    )
    precision: Literal["fp32", "bf16"] = option("fp32", "bf16: autocast")
    cuda_graphs: bool = option(True, "on one GPU: record batches of a shape, and replay them")
    compile: bool = option(False, "torch.compile the model, without cuda_graphs")
    recompute: bool = option(False, "keep no activations of layers: less memory, more time")
    seed: int = option(1, "of weights, batches, masks and dropout")
    log_every: int = option(50, "updates between lines of metrics.jsonl")
    save_every: int = option(1_000, "updates between checkpoints to resume from")


AT_LEAST_1 = {
    "data.update_tokens", "data.batch_tokens", "model.max_length", "model.upsample",
    "validation.length_candidates", "validation.beam", "validation.keep", "validation.average",
    "train.log_every", "train.save_every",
}  # fmt: skip


BELOW_1 = {"model.dropout", "loss.label_smoothing", "loss.truncation"}


@dataclass(frozen=True)
class Settings:
    run: str = required("folder for everything that this run writes")
    data: DataSettings = required("what to train on")
    model: ModelSettings = required("the network")
    loss: LossSettings = required("what is minimised")
    optim: OptimSettings = required("how")
    validation: ValidationSettings = required("how well")
    train: TrainSettings = required("how long, and on what")

    def __post_init__(self) -> None:
        """All that is wrong with the values, at once."""
        model, loss, limits = self.model, self.loss, self.train
        problems = []
        for name, value in flatten(to_mapping(self)).items():
            least = int(name in AT_LEAST_1)
            if isinstance(value, int | float) and not value >= least:  # nor nan
                problems.append(f"{name} must be at least {least}, got {value}")
            elif name in BELOW_1 and value >= 1:
                problems.append(f"{name} must be below 1, got {value}")
        if self.validation.length_penalty > MOST_LENGTH_PENALTY:
            problems.append(
                f"validation.length_penalty must be at most {MOST_LENGTH_PENALTY:g}, "
                f"got {self.validation.length_penalty}"
            )
        if not all(0 <= beta < 1 for beta in self.optim.betas):
            problems.append(f"optim.betas must be in [0, 1), got {list(self.optim.betas)}")
        if not (loss.annealing_c > 1 and loss.annealing_lambda <= 1):
            problems.append("loss.annealing_c must be above 1 and loss.annealing_lambda at most 1")
        losses = {"nat": ("xe", "oaxe", "axe"), "at": ("xe",), "ctc": ("ctc",), "lm": ("xe",)}
        allowed = losses[model.kind]
        if loss.name not in allowed:
            problems.append(
                f"loss.name {loss.name} does not go with model.kind {model.kind}; "
                f"it takes {', '.join(allowed)}"
            )
        if model.kind in ("at", "lm") and model.positions == "both":
            problems.append(
                f"model.positions both needs an end to count from; kind {model.kind} has none"
            )
        if loss.truncation and loss.name != "oaxe":
            problems.append(f"loss.truncation belongs to oaxe, the loss is {loss.name}")
        if not (limits.epochs or limits.steps):
            if loss.annealing:
                problems.append("loss.annealing needs train.epochs or train.steps")
            if self.optim.decay == "linear":
                problems.append("optim.decay linear needs train.epochs or train.steps")
        if loss.annealing and loss.name not in ("oaxe", "axe"):
            problems.append(f"loss.annealing belongs to oaxe and axe, the loss is {loss.name}")
        if not (limits.steps or limits.epochs or limits.minutes):
            problems.append("nothing stops this run: set train.steps, epochs or minutes")
        if problems:
            raise UserError("\n".join(problems))
