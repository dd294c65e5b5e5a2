"""Options that several commands share; light enough to be imported for ``--help``."""

from pathlib import Path
from typing import Annotated

import typer

MOST_LENGTH_PENALTY = 10.0  # with more, scores are too small to be told apart

ModelName = Annotated[
    str,
    typer.Option(help="A run, a checkpoint of it (RUN/best/step-...), a model, a hub name."),
]
LengthCandidates = Annotated[
    int | None, typer.Option(min=1, help="nat: lengths tried for each sentence; 1 is fastest.")
]
Beam = Annotated[int | None, typer.Option(min=1, help="at: beam width.")]
LengthPenalty = Annotated[
    float | None, typer.Option(help="A score is a sum over the length to this power.")
]
BatchTokens = Annotated[int, typer.Option(min=1, help="Size of a batch.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; default: cuda if there is.")]
Bf16 = Annotated[bool, typer.Option("--bf16", help="Compute in bfloat16.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting: --set optim.lr=1e-4"),
]
JsonPath = Annotated[
    Path | None, typer.Option(help="Also write the figures to this file.", dir_okay=False)
]
