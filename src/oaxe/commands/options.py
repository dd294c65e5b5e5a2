"""Options that several commands share; light enough to be imported for ``--help``."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

SAVED = "Default: as the model was saved."


def configuration_names(incomplete: str) -> list[str]:
    """For shells, which complete files by themselves."""
    from oaxe.commands.config import shipped

    return [name for name in shipped() if name.startswith(incomplete)]


def dataset_names(incomplete: str) -> list[str]:
    from oaxe.text.datasets.catalogue import CATALOGUE

    return [name for name in CATALOGUE if name.startswith(incomplete)]


Configuration = Annotated[
    str,
    typer.Argument(
        metavar="NAME_OR_FILE",
        autocompletion=configuration_names,
        help="A configuration by name (`oaxe config list`), or the path of a YAML file.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting of the configuration, such as optim.lr=1e-4. Can be repeated.",
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="Folder of a run, of one of its checkpoints (RUN/best/step-...), of a saved or an "
        "exported model, or a name on the Hugging Face hub. Default: the model in the box, "
        "English to German.",
    ),
]
BatchTokens = Annotated[
    int,
    typer.Option(
        min=1, help="Size of a batch, in source subwords with padding, times hypotheses a sentence."
    ),
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda or cuda:N. Default: cuda if there is a GPU, or cpu.")
]
Bf16 = Annotated[bool, typer.Option("--bf16", help="Compute in bfloat16. Default: float32.")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, max=1_024, help="Threads on a CPU. Default: as many as there are cores."),
]
Systems = Annotated[
    list[str] | None,
    typer.Option(
        "--system",
        metavar="MODULE",
        help="Module with a system of your own that the model needs: a model alone never causes "
        "an import. Can be repeated.",
    ),
]
JsonPath = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Also write the results to this JSON file. Default: none.",
        dir_okay=False,
    ),
]


@dataclass(frozen=True)
class Decoding:
    """How a model decodes. Those of its options that are not given stay as it was saved.

    The options that most systems share have flags of their own; ``--set`` reaches all others.
    """

    length_candidates: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Lengths tried for each sentence, for one-pass models; 1 is fastest. " + SAVED,
        ),
    ] = None
    repeats: Annotated[
        str | None,
        typer.Option(
            metavar="merge|forbid|keep",
            help="Equal neighbouring subwords of one-pass models: merge them, forbid them (the "
            "likeliest translation that has none), or keep them. " + SAVED,
        ),
    ] = None
    refine_steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Passes of the decoder, for one-pass models; above 1 is mask-predict. " + SAVED,
        ),
    ] = None
    beam: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Beam width, for autoregressive models, where 1 is greedy search, and for "
            "method=beam of others. " + SAVED,
        ),
    ] = None
    length_penalty: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Hypotheses are ranked by log-probability over length to this power. " + SAVED,
        ),
    ] = None
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change any other option of decoding, such as max_ratio=3; "
            "`oaxe config show --system NAME` has them. Can be repeated.",
        ),
    ] = None
    systems: Systems = None
    batch_tokens: BatchTokens = 16_384
    device: Device = None
    threads: Threads = None
    bf16: Bf16 = False

    @property
    def given(self) -> dict[str, Any]:
        """The options of the system's decoding that are on the command line."""
        from oaxe.support.config import override

        flags = "length_candidates", "repeats", "refine_steps", "beam", "length_penalty"
        found = {name: value for name in flags if (value := getattr(self, name)) is not None}
        for change in self.changes or ():
            override(found, change)
        return found


def with_decoding(command: Callable[..., None]) -> Callable[..., None]:
    """A command for Typer: its parameter ``decoding`` is replaced by the fields of Decoding."""
    own = dict(inspect.signature(command).parameters)
    del own["decoding"]
    shared = inspect.signature(Decoding).parameters

    @wraps(command)
    def flat(**values: Any) -> None:
        decoding = Decoding(**{name: values.pop(name) for name in shared})
        command(**values, decoding=decoding)

    parameters = {
        name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in (own | dict(shared)).items()
    }
    flat.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    flat.__annotations__ = {name: p.annotation for name, p in parameters.items()}
    return flat
