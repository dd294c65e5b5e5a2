"""The demonstration: numbers in several orders, learned with XE and with OaXE, in minutes."""

import json
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
from oaxe.support.files import write_whole
from oaxe.support.jobs import StoppedError
from oaxe.systems.cmlm import Model
from oaxe.text.batches import collate
from oaxe.text.symbols import PAD
from reproduction.folder import Folder, Result
from reproduction.synthetic.demo_page import write_page
from reproduction.synthetic.demo_text import show
from reproduction.synthetic.recipes import DEMO, Recipe
from reproduction.synthetic.scores import ordering_of
from reproduction.synthetic.task import ORDERINGS, reorder
from reproduction.synthetic.training import Training, numbers

MODES = len(ORDERINGS)
MEASURES = ("exact_match", "repetition", "confidence", "chosen")


def run(out: Path, seed: int, console: Console, recipe: Recipe = DEMO) -> dict[str, Any]:
    """Returns what it also writes to ``out/result.json``; stopped early, what was done by then."""
    out.mkdir(parents=True, exist_ok=True)
    started, on_interrupt = time.monotonic(), signal.getsignal(signal.SIGINT)
    introduce(recipe, console)
    result: dict[str, Any] = {
        "finished": False,
        "seed": seed,
        "task": asdict(recipe.task(MODES)),
        "updates": {
            "pretraining": recipe.xe_updates,
            "xe": recipe.updates,
            "oaxe": recipe.updates,
        },
        **{name: {} for name in MEASURES},
    }
    outputs: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        training = Training(recipe, MODES, seed, Folder(Path(folder), "synthetic", "demo"), console)
        try:
            rest = recipe.updates - recipe.xe_updates
            console.rule(f"1. {recipe.xe_updates} updates with XE: each number at its own position")
            weights = training.pretrained()
            result["matrix"] = matching(training, training.new_model("xe", weights).eval())
            console.rule(f"2. {rest} more with OaXE, from there: the best order for each target")
            outputs["oaxe"] = add(result, training.result("oaxe"))
            console.rule(f"3. {rest} more with XE, from the same weights, to compare")
            outputs["xe"] = add(result, training.result("xe"))
            result["finished"] = True
        except (StoppedError, KeyboardInterrupt):
            console.print("stopped; the report has what was done until here")
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not take it away
        result["curves"] = {method: training.curve(method) for method in ("xe", "oaxe")}
    result["examples"] = side_by_side(outputs)
    result["seconds"] = round(time.monotonic() - started, 1)
    write_whole(out / "result.json", json.dumps(result, indent=1) + "\n")
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
        console.print(f"  {name:<16} {right}", highlight=False)
    console.print(
        "\nEach training pair shows one of them, at random: as in translation, where many orders "
        f"are right and the\nreference has one. {recipe.numbers} numbers, {recipe.shortest} to "
        f"{recipe.longest} of them in a row.\n",
        highlight=False,
    )


def add(result: dict[str, Any], trained: Result) -> list[dict[str, Any]]:
    """Put the scores of a method into the result; returns its examples."""
    scores = trained["tests"]["test"]
    for name in MEASURES:
        result[name][trained["experiment"]] = scores[name]
    examples: list[dict[str, Any]] = scores["examples"]
    return examples


def side_by_side(outputs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The outputs of the methods for the first three test sources."""
    rows = zip(*(examples[:3] for examples in outputs.values()), strict=True)
    return [
        {"source": row[0]["source"]}
        | {method: example["output"] for method, example in zip(outputs, row, strict=True)}
        for row in rows
    ]


@torch.no_grad()
def matching(training: Training, model: Model) -> dict[str, Any]:
    """The model's probabilities of one target's numbers, and the order that OaXE finds."""
    batch = collate(training.corpora["valid"], np.arange(1)).to(training.ranks.device)
    inputs, target = decoder_inputs(batch.target, "unobserved")
    encoded, _ = model.length.encode(model.transformer, batch.source)
    logits = model.transformer.logits(model.transformer.decode(inputs, inputs != PAD, encoded))
    _, order = oaxe_loss(logits, target, ignore_index=IGNORED, return_order=True)
    source = batch.source[0, :-1].tolist()
    return {
        "source": numbers(source),
        "target": numbers(target[0].tolist()),
        "ordering": ordering_of(training.task, source, target[0].tolist()),
        "probability": logits[0].float().softmax(-1)[:, target[0]].tolist(),
        "order": order.positions[0].tolist(),
    }
