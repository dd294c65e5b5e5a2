"""The demonstration: numbers in several orders, learned with XE and with OaXE, in minutes."""

import signal
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from oaxe.losses import oaxe_loss
from oaxe.model.masking import IGNORED, decoder_inputs
from oaxe.support.files import make_folder
from oaxe.systems.cmlm import Model
from oaxe.text.batches import collate
from oaxe.text.symbols import PAD
from reproduction.folder import Folder, write_json
from reproduction.jobs import StoppedError
from reproduction.synthetic.demo_page import write_page
from reproduction.synthetic.demo_text import show
from reproduction.synthetic.recipes import DEMO, Recipe
from reproduction.synthetic.scores import NONE, ordering_of
from reproduction.synthetic.task import ORDERINGS, reorder
from reproduction.synthetic.training import Training, numbers

MODES = len(ORDERINGS)
CANDIDATES = 64  # validation pairs of which one is drawn


def run(out: Path, seed: int, console: Console, recipe: Recipe = DEMO) -> dict[str, Any]:
    """Returns what it also writes to ``out/result.json``; stopped early, what was done by then.

    ``scores`` and ``curves`` are by method, as in a result of the synthetic task; a method that was
    not tested has no scores. ``matrix`` is null if pre-training was not done.
    """
    make_folder(out)
    started, on_interrupt = time.monotonic(), signal.getsignal(signal.SIGINT)
    introduce(recipe, console)
    result: dict[str, Any] = {
        "finished": False,
        "seed": seed,
        "recipe": asdict(recipe),
        "scores": {},
        "matrix": None,
    }
    with tempfile.TemporaryDirectory() as folder:
        training = Training(recipe, MODES, seed, Folder(Path(folder), "synthetic", "demo"), console)
        try:
            rest = recipe.updates - recipe.xe_updates
            console.rule(f"1. {recipe.xe_updates} updates with XE: each number at its own position")
            weights = training.pretrained()
            result["matrix"] = matching(training, training.new_model("xe", weights).eval())
            console.rule(f"2. {rest} more with OaXE, from there: the best order for each target")
            result["scores"]["oaxe"] = training.result("oaxe")["tests"]["test"]
            console.rule(f"3. {rest} more with XE, from the same weights, to compare")
            result["scores"]["xe"] = training.result("xe")["tests"]["test"]
            result["finished"] = True
        except (StoppedError, KeyboardInterrupt):
            console.print("stopped; the report has what was done until here")
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not take it away
        result["curves"] = {method: training.curve(method) for method in ("xe", "oaxe")}
    result["seconds"] = round(time.monotonic() - started, 1)
    write_json(out / "result.json", result)
    write_page(result, out / "report.html")
    signal.signal(signal.SIGINT, on_interrupt)
    console.rule()
    show(result, console)
    console.print(f"\n{result['seconds']:.0f} seconds; charts and more: {out / 'report.html'}")
    return result


def introduce(recipe: Recipe, console: Console) -> None:
    source = [1, 3, 10, 7, 9, 2]
    console.print("A model reads numbers and predicts all in one pass, in any of five orders:\n")
    for mode, name in enumerate(ORDERINGS):
        right = " ".join(f"{number:>2}" for number in reorder(source, mode))
        console.print(f"  {name:<16} {right}")
    console.print(
        "\nEach training pair shows one of them, at random: as in translation, where many orders "
        f"are right and the\nreference has one. {recipe.numbers} numbers, {recipe.shortest} to "
        f"{recipe.longest} of them in a row.\n"
    )


@torch.no_grad()
def matching(training: Training, model: Model) -> dict[str, Any]:
    """The model's probabilities of one target's numbers, and the order that OaXE finds.

    It is the first target for which OaXE finds another right order than the one that was drawn, or
    the first of all: where both are the same, there is nothing to see.
    """
    some = np.arange(min(CANDIDATES, training.recipe.valid))
    batch = collate(training.corpora["valid"], some).to(training.ranks.device)
    inputs, target = decoder_inputs(batch.target, "unobserved")
    encoded, _ = model.length.encode(model.transformer, batch.source)
    logits = model.transformer.logits(model.transformer.decode(inputs, inputs != PAD, encoded))
    _, order = oaxe_loss(logits, target, ignore_index=IGNORED, return_order=True)
    found = []
    for row, words in enumerate(target):
        n = int(words.ne(IGNORED).sum())
        source, drawn = batch.source[row, :n].tolist(), words[:n].tolist()
        positions = order.positions[row, :n].tolist()
        drawn_as = ordering_of(training.task, source, drawn)
        found_as = ordering_of(training.task, source, [drawn[column] for column in positions])
        found.append((row, n, source, drawn, positions, drawn_as))
        if found_as not in (drawn_as, NONE):
            break
    else:
        found = found[:1]
    row, n, source, drawn, positions, drawn_as = found[-1]
    return {
        "source": numbers(source),
        "target": numbers(drawn),
        "ordering": drawn_as,
        "probability": logits[row, :n].float().softmax(-1)[:, drawn].tolist(),
        "order": positions,
    }
