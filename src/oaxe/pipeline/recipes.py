"""The settings of each training of a build, as YAML has them.

Those of a CPU and of a GPU were measured on Multi30k with sizes tiny and small; see docs/build.md.
"""

from dataclasses import dataclass
from typing import Any

CPU_BATCH, GPU_BATCH = 4_096, 16_384  # tokens
VALIDATED = 200  # sentences that a validation translates on a CPU, at most
VALIDATIONS = 5  # of a training
GLANCING = {"ctc_glat": 0.3, "dag": 0.1}  # the systems there are: what each reveals at the end


@dataclass(frozen=True)
class Rates:
    """What differs between the two trainings and between machines."""

    update_tokens: int
    lr: float
    warmup: int
    ema: float


# by (on a GPU, size is base or larger)
TEACHERS = {
    (False, False): Rates(1_024, 1e-3, 400, 0.0),
    (False, True): Rates(4_096, 5e-4, 1_000, 0.0),
    (True, False): Rates(16_384, 5e-4, 1_000, 0.0),
    (True, True): Rates(32_768, 5e-4, 2_000, 0.0),
}
STUDENTS = {
    (False, False): Rates(3_072, 1.5e-3, 150, 0.99),
    (False, True): Rates(8_192, 5e-4, 500, 0.99),
    (True, False): Rates(16_384, 1e-3, 300, 0.999),
    (True, True): Rates(32_768, 5e-4, 500, 0.999),
}


@dataclass(frozen=True)
class Machine:
    """What the settings depend on."""

    device: str  # "cpu" or "cuda"
    size: str
    pairs: int
    sentences: int  # that are worth translating for a score; 0: all

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def dropout(self) -> float:
        return 0.3 if self.on_gpu and self.pairs < 500_000 else 0.1


def teacher(machine: Machine, updates: int) -> dict[str, Any]:
    """An autoregressive Transformer."""
    return _training(machine, "transformer", updates, TEACHERS)


def one_pass(machine: Machine, updates: int, system: str) -> dict[str, Any]:
    """A one-pass model that starts from the teacher, at a rate that falls to zero."""
    content = _training(machine, system, updates, STUDENTS)
    content["optim"] |= {"decay": "linear", "clip": 1.0}
    return content


def bigrams(machine: Machine, updates: int, system: str) -> dict[str, Any]:
    """The same model, fine-tuned for the bigrams that it has in common with the target."""
    content = one_pass(machine, updates, system)
    content[system] = {"objective": "ngrams", "start": GLANCING[system], "end": GLANCING[system]}
    content["optim"] |= {"lr": 2e-4, "warmup": min(100, updates // 10)}
    content["train"]["ema"] = 0.99
    content["validation"]["every"] = max(1, updates // 2)
    return content


def _training(
    machine: Machine, system: str, updates: int, rates: dict[tuple[bool, bool], Rates]
) -> dict[str, Any]:
    own = rates[machine.on_gpu, machine.size not in ("tiny", "small")]
    return {
        "data": {
            "update_tokens": own.update_tokens,
            "batch_tokens": GPU_BATCH if machine.on_gpu else CPU_BATCH,
        },
        "model": {"system": system, "size": machine.size, "dropout": machine.dropout},
        "optim": {"lr": own.lr, "warmup": min(own.warmup, max(1, updates // 6))},
        "validation": {
            "every": max(1, updates // VALIDATIONS),
            "max_sentences": min(machine.sentences, VALIDATED),
        },
        "train": {
            "steps": updates,
            "precision": "bf16",
            "ema": own.ema,
            "save_every": max(1, min(1_000, updates // 10)),
        },
    }
