"""``oaxe demo``: numbers in several orders, learned with XE and with OaXE, in a few minutes."""

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
from oaxe.model.transformer import Transformer
from oaxe.support.files import write_whole
from oaxe.support.jobs import StoppedError
from oaxe.text.batches import collate
from oaxe.text.symbols import PAD
from reproduction.synthetic.display import show
from reproduction.synthetic.experiment import Experiment, numbers
from reproduction.synthetic.outcome import ordering_of
from reproduction.synthetic.recipe import DEMO, Recipe
from reproduction.synthetic.report import write_report
from reproduction.synthetic.task import ORDERINGS, reorder

MODES = len(ORDERINGS)
FIGURES = ("exact_match", "repetition", "confidence", "chosen")


def run(out: Path, seed: int, console: Console, recipe: Recipe = DEMO) -> dict[str, Any]:
    """Returns what it also writes to ``out/result.json``; stopped, it has what there is by then."""
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
        **{name: {} for name in FIGURES},
    }
    outputs: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(recipe, MODES, seed, Path(folder), console)
        try:
            rest = recipe.updates - recipe.xe_updates
            console.rule(f"1. {recipe.xe_updates} updates with XE: every number in its own place")
            weights = experiment.pretrained()
            result["matrix"] = matching(experiment, experiment.new_model(weights).eval())
            console.rule(f"2. {rest} more with OaXE, from there: the best order for each target")
            outputs["oaxe"] = add(result, experiment.result("oaxe"))
            console.rule(f"3. {rest} more with XE, from the same place, to compare")
            outputs["xe"] = add(result, experiment.result("xe"))
            result["finished"] = True
        except (StoppedError, KeyboardInterrupt):
            console.print("stopped; the report has what was done until here")
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not take it away
        result["curves"] = {method: experiment.curve(method) for method in ("xe", "oaxe")}
    result["examples"] = side_by_side(outputs)
    result["seconds"] = round(time.monotonic() - started, 1)
    write_whole(out / "result.json", json.dumps(result, indent=1) + "\n")
    write_report(result, out / "report.html")
    signal.signal(signal.SIGINT, on_interrupt)
    console.rule()
    show(result, console)
    console.print(f"\n{result['seconds']:.0f} seconds; pictures and more: {out / 'report.html'}")
    return result


def introduce(recipe: Recipe, console: Console) -> None:
    source = [1, 3, 10, 7, 9, 2]
    console.print("A model reads numbers and says them all at once, in any of five orders:\n")
    for mode, name in enumerate(ORDERINGS):
        right = " ".join(f"{number:>2}" for number in reorder(source, mode))
        console.print(f"  {name:<16} {right}", highlight=False)
    console.print(
        "\nEach training pair shows one of them, at random: as in translation, where many orders "
        f"are right and the\ntext has one. {recipe.numbers} numbers, {recipe.shortest} to "
        f"{recipe.longest} of them in a row.\n",
        highlight=False,
    )


def add(result: dict[str, Any], of_method: dict[str, Any]) -> list[dict[str, Any]]:
    """Put the figures of a method into the result; returns its examples."""
    for name in FIGURES:
        result[name][of_method["method"]] = of_method[name]
    examples: list[dict[str, Any]] = of_method["examples"]
    return examples


def side_by_side(outputs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What the methods say to the first three test sources."""
    rows = zip(*(examples[:3] for examples in outputs.values()), strict=True)
    return [
        {"source": row[0]["source"]}
        | {method: example["output"] for method, example in zip(outputs, row, strict=True)}
        for row in rows
    ]


@torch.no_grad()
def matching(experiment: Experiment, model: Transformer) -> dict[str, Any]:
    """The model's probabilities of one target's words, and the order that OaXE finds."""
    batch = collate(experiment.corpora["valid"], np.arange(1)).to(experiment.ranks.device)
    inputs, target = decoder_inputs(batch.target, "unobserved")
    logits = model.logits(model.decode(inputs, inputs != PAD, model.encode(batch.source)))
    _, order = oaxe_loss(logits, target, ignore_index=IGNORED, return_order=True)
    source = batch.source[0, :-1].tolist()
    return {
        "source": numbers(source),
        "target": numbers(target[0].tolist()),
        "ordering": ordering_of(experiment.task, source, target[0].tolist()),
        "probability": logits[0].float().softmax(-1)[:, target[0]].tolist(),
        "place_of": order.positions[0].tolist(),
    }
