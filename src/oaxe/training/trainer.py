"""The training loop.

for update in loader:                # the same batches for the same seed, resumed or not
    its gradient                     # of all batches and ranks, see oaxe.training.step
    optimizer.step()
    log, validate, save              # the only moments that wait for the device

On the CPU, the same settings give the same weights to the last bit, however often the run was
stopped, for the same number of threads (``OMP_NUM_THREADS``) and ranks: these set the order in
which numbers are added up.
"""

import math
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from oaxe.decoding.saved import check_weights
from oaxe.losses import NotFiniteError
from oaxe.losses.assignment import forget_costs
from oaxe.model.span_attention import has_kernel
from oaxe.support.errors import UserError
from oaxe.systems import System
from oaxe.text.batches import Update, UpdateLoader
from oaxe.text.corpus import Corpus
from oaxe.text.plans import Limits
from oaxe.training.averaging import GROUP
from oaxe.training.checkpoint import (
    Position,
    checkpoints,
    load_newest,
    load_optimizer,
    optimizer_tensors,
    remove_others,
    save_checkpoint,
    step_of,
)
from oaxe.training.interruption import AbandonedError, Interruption
from oaxe.training.log import RunLog
from oaxe.training.ranks import Ranks
from oaxe.training.settings import Settings
from oaxe.training.step import Step
from oaxe.training.validation import Validation

CHECKPOINTS, BEST = "checkpoints", "best"  # folders of a run
INTERRUPTED = "interrupted"


class Trainer:
    def __init__(
        self,
        settings: Settings,
        system: System,
        corpus: Corpus,
        validation: Validation,
        ranks: Ranks,
        console: Console,
        title: str = "training",
    ) -> None:
        self.title = title  # of the progress bar
        self.settings, self.ranks, self.console = settings, ranks, console
        self.system, self.corpus, self.validation = system, corpus, validation
        self.folder = Path(settings.run)
        self.position = Position()
        self.update = Step(settings, system, ranks, self.warn)
        self._resume()
        self._saved_step = self.position.step
        self._interruption = Interruption(alone=ranks.world_size == 1)
        self._ticked = time.monotonic()
        self._unchecked: list[tuple[int, list[Tensor], Tensor]] = []  # step, indices, loss
        self._advised: set[str] = set()

    @property
    def packed(self) -> bool:
        """Whether batches are computed without their padding."""
        return is_packed(self.settings, self.system, self.ranks)

    def loader(self) -> UpdateLoader:
        """The updates from here on."""
        data, seed, ranks = self.settings.data, self.settings.train.seed, self.ranks
        epoch, start = self.position.epoch, self.position.update
        return UpdateLoader(
            self.corpus,
            Limits(data.batch_tokens, data.update_tokens, seed, epoch, ranks.world_size),
            start,
            rank=ranks.rank,
            device=ranks.device,
            mix_lengths=data.mix_lengths,
            packed=self.packed,
            in_bands=self.system.in_bands,
        )

    def run(self) -> str:
        """Train until a limit is reached; returns which."""
        position, log = self.position, None
        forget_costs()  # of a run before, in this process, that failed
        self._advise({})
        loader = self.loader()
        if self._limit_reached() and not position.best:
            position.validation_due = True  # a limit was lowered to what is done already
        if self.ranks.is_first:
            log = RunLog(
                self.folder,
                self.console,
                title=self.title,
                step=position.step,
                validated=not position.validation_due,
            )
        self._ticked = time.monotonic()
        try:
            with self._interruption.listening():
                reason = self._validate_if_due(log) or self._limit_reached()
                if reason:
                    self._save()
                while not reason:
                    reason = self.one_update(next(loader), log)
        finally:
            loader.close()
            if self.update.recordings:
                self.update.recordings.forget()
            if log:
                log.close()
        return reason

    def one_update(self, update: Update, log: RunLog | None = None) -> str:
        """One update and what is due after it; returns why training is over, or nothing."""
        settings, position = self.settings, self.position
        epoch = update.epoch + update.number / update.n_updates
        try:
            lr = self.step(update)
        except AbandonedError:
            self._check_finite(weights=True)
            self._save()
            return INTERRUPTED
        self._tick()
        position.tokens += update.n_target_tokens
        position.step += 1
        end_of_epoch = update.number + 1 == update.n_updates
        position.epoch = update.epoch + end_of_epoch
        position.update = 0 if end_of_epoch else update.number + 1

        step, every = position.step, settings.validation.every
        must_log = step % settings.train.log_every == 0
        reason = self._limit_reached()
        position.validation_due = bool(reason) or (step % every == 0 if every else end_of_epoch)
        if self.ranks.any_of(self._interruption.asked):
            reason = INTERRUPTED
        must_save = bool(reason) or step % settings.train.save_every == 0
        keeps_weights = must_save or position.validation_due
        if must_log or keeps_weights or self.ranks.device.type == "cpu":
            self._check_finite(weights=keeps_weights)
            self._tick()
        if must_log:
            self._log_training(log, epoch, lr)
        if reason != INTERRUPTED:
            reason = self._validate_if_due(log) or reason or self._limit_reached()  # patience
        if must_save or reason:
            self._save()
        if log:
            log.advance(step, self._expected_steps(update))
        return reason

    def _expected_steps(self, update: Update) -> float:
        """When the first of the limits will be reached, as far as it can be foreseen."""
        per_second = self.position.step / max(self.position.seconds, 1e-9)
        in_time = 60 * self.settings.train.minutes * per_second or math.inf
        return min(self.settings.updates(update.n_updates), in_time)

    def step(self, update: Update) -> float:
        """Change the weights once; returns the learning rate."""
        number = self.position.step + 1
        try:
            with self._interruption.repeatable():
                total = self.update.gradient(update, number)
        except NotFiniteError as error:  # in the matching, on a GPU of an update before
            now = [(number, indices_of(update), torch.tensor(math.nan))]
            wrong = next(s for s in [*self._unchecked, *now] if not math.isfinite(s[2]))
            message = self._not_finite(wrong[1], f"update {wrong[0]}: {error}")
            raise UserError(message) from None
        self._unchecked.append((number, indices_of(update), total))
        return self.update.change_weights(update, number)

    def _tick(self) -> None:
        """Count the time since the last tick, validation or save as spent on updates."""
        now = time.monotonic()
        self.position.seconds += now - self._ticked
        self._ticked = now

    def _check_finite(self, weights: bool) -> None:
        """Stop every rank at a number that is not finite on one, before anything is saved."""
        if not self._unchecked:
            return
        problem = ""
        totals = torch.stack([total for _, _, total in self._unchecked]).tolist()  # device sync
        for (step, indices, _), total in zip(self._unchecked, totals, strict=True):
            if not (problem or math.isfinite(total)):
                problem = self._not_finite(indices, f"the loss of update {step} is {total}")
        self.ranks.stop_at(problem)
        if weights:
            # A finite loss can have a gradient that is not: the next loss would show it, too late.
            tensors = [
                *self.system.parameters(),
                *optimizer_tensors(self.update.optimizer).values(),
            ]
            if not all(tensor.isfinite().all() for tensor in tensors):
                what = f"update {self.position.step} made weights that are not finite"
                problem = self._not_finite(self._unchecked[-1][1], what)
            self.ranks.stop_at(problem)
        del self._unchecked[:-1]  # the last one can be asked about again

    def _not_finite(self, indices: list[Tensor], what: str) -> str:
        pairs = torch.cat(indices).tolist() if indices else []
        shown = ", ".join(map(str, pairs[:20])) + (" ..." if len(pairs) > 20 else "")
        return (
            f"{what}, in the batch of training pairs {shown} (counted from 0). The last good "
            f"checkpoint is in {self.folder / CHECKPOINTS}. A lower optim.lr, a longer "
            "optim.warmup or optim.clip usually helps"
        )

    def _limit_reached(self) -> str:
        limits, position = self.settings.train, self.position
        patience = self.settings.validation.patience
        if limits.steps and position.step >= limits.steps:
            return f"{limits.steps} updates are done"
        if limits.epochs and position.epoch >= limits.epochs:
            return f"{limits.epochs} epochs are done"
        # Clocks differ between ranks: the first one decides.
        if limits.minutes and self.ranks.first_says(position.seconds) >= 60 * limits.minutes:
            return f"{limits.minutes:g} minutes are over"
        if patience and position.validations_without_gain >= patience:
            return f"no better {self.validation.metric} in {patience} validations"
        return ""

    def _log_training(self, log: RunLog | None, epoch: float, lr: float) -> None:
        means = {
            n: total / max(number, 1)
            for n, (total, number) in self.update.statistics.totals().items()
        }
        self.update.statistics.clear()
        elapsed = self.position.seconds - self.position.logged_seconds
        self.position.logged_seconds = self.position.seconds
        tokens, self.position.tokens = self.position.tokens, 0
        if log:
            entry = {
                "what": "train",
                "step": self.position.step,
                "seconds": self.position.seconds,
                "epoch": round(epoch, 4),
                "lr": lr,
                "tokens_per_second": tokens / elapsed,
            }
            log.write(entry | means)
            self._advise(means)

    def _advise(self, means: dict[str, float]) -> None:
        """Print the advice of the system on this run, each sentence once."""
        from_scratch = self.settings.train.init_from is None
        advice = self.system.advice(means, from_scratch=from_scratch)
        if advice and advice not in self._advised:
            self._advised.add(advice)
            self.warn(advice)

    def _validate_if_due(self, log: RunLog | None) -> str:
        """Validate, if it is due; returns INTERRUPTED if that was interrupted, or nothing."""
        if not self.position.validation_due:
            return ""
        with self.update.averages.in_use() if self.update.averages else nullcontext():
            return self._validate(log)

    def _validate(self, log: RunLog | None) -> str:
        position, settings = self.position, self.settings.validation
        try:
            with self._interruption.repeatable():
                result = self.validation.run(self.system)
        except AbandonedError:
            return INTERRUPTED
        position.validation_due = False
        self._saved_step = -1  # what was saved of this step lacks the validation
        score = result[self.validation.metric]
        position.validations_without_gain += 1
        if not position.best or score > position.best[0]["score"]:
            position.validations_without_gain = 0
        position.best.append({"step": position.step, "score": score})
        position.best.sort(key=lambda entry: (-entry["score"], entry["step"]))
        del position.best[max(settings.keep, 1) :]
        if log:
            if any(entry["step"] == position.step for entry in position.best):
                tensors = {"model": self.system.state_dict()}
                save_checkpoint(self.folder / BEST, position.step, tensors, {"validation": result})
            record = {"what": "valid", "step": position.step, "seconds": position.seconds}
            log.write({**record, **result, "best": position.best[0]["score"]})
        self._ticked = time.monotonic()
        return ""

    def _save(self) -> None:
        position, folder = self.position, self.folder / CHECKPOINTS
        if position.step != self._saved_step:
            position.statistics = self.update.statistics.totals()
            self._saved_step = position.step
            if self.ranks.is_first:
                tensors = {
                    "model": self.system.state_dict(),
                    "optimizer": optimizer_tensors(self.update.optimizer),
                }
                if self.update.averages:
                    tensors[GROUP] = self.update.averages.tensors()
                save_checkpoint(folder, position.step, tensors, asdict(position))
        if self.ranks.is_first:
            # Later steps are damaged: this run began before them.
            steps = [s for s in map(step_of, checkpoints(folder)) if s <= position.step]
            remove_others(folder, set(steps[-2:]))
            # Only now: the checkpoint before this one may have had other best ones.
            remove_others(self.folder / BEST, {int(entry["step"]) for entry in position.best})
        self._ticked = time.monotonic()

    def _resume(self) -> None:
        found = load_newest(self.folder / CHECKPOINTS, self.warn)
        if self.ranks.first_says(found and found[0].name) != (found and found[0].name):
            raise UserError(
                f"rank {self.ranks.rank} does not find the checkpoints of the first rank; "
                f"{self.folder} must be the same folder on all machines"
            )
        if found is None:
            return
        path, tensors, state = found
        check_weights(self.system.state_dict(), tensors["model"], f"{path} is of another model")
        self.system.load_state_dict(tensors["model"])
        load_optimizer(self.update.optimizer, tensors["optimizer"])
        if self.update.averages:
            self.update.averages.load(tensors, str(path))
        self.position = Position(**state)
        self.update.statistics.carried = self.position.statistics
        self.console.print(f"resumed from {path}")

    def warn(self, message: str) -> None:
        self.console.print(f"warning: {message}", style="yellow")


def is_packed(settings: Settings, system: System, ranks: Ranks) -> bool:
    """Whether to pack: as the settings say or, if they leave it open, where it is faster."""
    wanted = settings.data.packed
    able = system.room(1, 1, 1) is not None
    if wanted and not able:
        raise UserError(
            f"data.packed: the system {system.name} cannot do without padding; leave it out"
        )
    fast = ranks.device.type == "cuda" and settings.train.precision == "bf16"
    fast = fast and not settings.train.compile
    size = system.architecture
    fast = fast and has_kernel(size["dim"], size["heads"])
    return able and (fast if wanted is None else wanted)


def indices_of(update: Update) -> list[Tensor]:
    return [batch.indices for batch in update.batches]
