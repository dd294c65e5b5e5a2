"""The command line. Commands import what they need when they run: ``--help`` must be instant."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from oaxe import __version__
from oaxe.bench.commands import bench
from oaxe.datasets.commands import data
from oaxe.options import (
    BatchTokens,
    Beam,
    Bf16,
    Device,
    LengthCandidates,
    ModelName,
    Overrides,
    check_parent,
)
from oaxe.translation.commands import add_commands

app = typer.Typer(
    help="Order-agnostic cross entropy: losses for models that predict all words at once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
config = typer.Typer(help="Look at and check configurations of `oaxe train`.", no_args_is_help=True)
app.add_typer(config, name="config")
app.add_typer(data, name="data")
app.add_typer(bench, name="bench")
reproduce = typer.Typer(
    help="The experiments of the paper, each with one command.", no_args_is_help=True
)
app.add_typer(reproduce, name="reproduce")


def print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for result.json and report.html.", file_okay=False)
    ] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of data and models.")] = 1,
) -> None:
    """Watch XE fail and OaXE succeed on numbers in five orders (four minutes on 2 cores)."""
    from rich.console import Console

    from oaxe.synthetic.demo import run

    if not run(out, seed, Console())["finished"]:
        raise typer.Exit(1)


@app.command()
def prepare(
    out: Annotated[Path, typer.Argument(help="Folder to make.")],
    train: Annotated[
        tuple[Path, Path],
        typer.Option(metavar="SOURCE TARGET", help="Training text: plain, .gz or .xz."),
    ],
    source_language: Annotated[str, typer.Option("--from", help="Source language, such as en.")],
    target_language: Annotated[str, typer.Option("--to", help="Target language, such as de.")],
    valid: Annotated[
        tuple[Path, Path] | None, typer.Option(metavar="SOURCE TARGET", help="Validation text.")
    ] = None,
    test: Annotated[
        tuple[Path, Path] | None, typer.Option(metavar="SOURCE TARGET", help="Test text.")
    ] = None,
    vocab_size: Annotated[int, typer.Option(min=1, help="Joint BPE vocabulary.")] = 32_000,
    subwords: Annotated[
        Path | None, typer.Option(help="Use this subword model instead of learning one.")
    ] = None,
    max_length: Annotated[
        int, typer.Option(min=1, help="Drop training pairs with more subwords on a side.")
    ] = 250,
    max_ratio: Annotated[
        float | None, typer.Option(min=1, help="Drop training pairs of more unequal lengths.")
    ] = None,
    deduplicate: Annotated[
        bool, typer.Option("--deduplicate", help="Drop training pairs that were there before.")
    ] = False,
    character_coverage: Annotated[
        float, typer.Option(help="Share of characters kept; 0.9995 suits Japanese or Chinese.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the sample that subwords are learned from.")] = 1,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a finished folder.")
    ] = False,
) -> None:
    """Parallel text to subwords in a folder that `oaxe train` reads."""
    from rich.console import Console

    from oaxe.text.prepare import prepare

    prepare(
        out,
        source_language=source_language,
        target_language=target_language,
        train=train,
        valid=valid,
        test=test,
        vocab_size=vocab_size,
        character_coverage=character_coverage,
        max_length=max_length,
        max_ratio=max_ratio,
        deduplicate=deduplicate,
        subwords=subwords,
        seed=seed,
        overwrite=overwrite,
        console=Console(),
    )


@app.command()
def train(
    configuration: Annotated[Path, typer.Argument(help="YAML file; see `oaxe config show`.")],
    changes: Overrides = None,
) -> None:
    """Train a model; the same command continues a run that was stopped.

    On several GPUs or machines: torchrun --nproc-per-node 8 -m oaxe.cli train config.yaml
    """
    from rich.console import Console

    from oaxe.config import load
    from oaxe.training.settings import Settings

    settings = load(Settings, configuration, changes or [])

    from oaxe.training.run import train
    from oaxe.training.trainer import INTERRUPTED

    if train(settings, Console())["stopped"] == INTERRUPTED:
        raise typer.Exit(1)


@app.command()
def translate(
    model: ModelName,
    source: Annotated[
        Path | None, typer.Argument(help="Text, a sentence a line; default: standard input.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Default: standard output.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="JSON lines with scores and all alternatives.")
    ] = False,
    length_candidates: LengthCandidates = None,
    deduplicate: Annotated[
        bool | None, typer.Option(help="nat: collapse equal neighbours.")
    ] = None,
    refine_steps: Annotated[
        int | None, typer.Option(min=1, help="nat: passes; above 1 is mask-predict.")
    ] = None,
    beam: Beam = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="at: exponent of the length.")
    ] = None,
    batch_tokens: BatchTokens = 16_384,
    device: Device = None,
    bf16: Bf16 = False,
) -> None:
    """Translate a file, standard input, or what you type."""
    import sys

    from rich.console import Console

    from oaxe.decoding.lines import load_translator, talk, translate_file

    given = {
        "length_candidates": length_candidates,
        "deduplicate": deduplicate,
        "refine_steps": refine_steps,
        "beam": beam,
        "length_penalty": length_penalty,
    }
    options = {name: value for name, value in given.items() if value is not None}
    translator = load_translator(model, device)
    if source is None and sys.stdin.isatty() and output is None and not json:
        talk(translator, Console(), **options)
    else:
        translate_file(
            translator,
            source,
            output,
            as_json=json,
            batch_tokens=batch_tokens,
            bf16=bf16,
            **options,
        )


@app.command()
def serve(
    model: ModelName,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for all of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 for any that is free.")] = 8_000,
    length_candidates: LengthCandidates = None,
    beam: Beam = None,
    batch_tokens: BatchTokens = 16_384,
    device: Device = None,
    bf16: Bf16 = False,
) -> None:
    """Translate over HTTP: POST /translate for programs, a page to type into for people.

    What arrives while a batch is translated is the next batch. There is no encryption and no
    password: on anything but your own machine, put a web server in front.
    """
    from rich.console import Console

    from oaxe.decoding.lines import load_translator
    from oaxe.serving.server import serve

    given = {"length_candidates": length_candidates, "beam": beam}
    serve(
        load_translator(model, device),
        name=model,
        host=host,
        port=port,
        batch_tokens=batch_tokens,
        bf16=bf16,
        console=Console(),
        **{name: value for name, value in given.items() if value is not None},
    )


@app.command()
def distill(
    out: Annotated[Path, typer.Option(help="Folder to make.", file_okay=False)],
    teacher: Annotated[
        str, typer.Option(help="An autoregressive run, checkpoint of it, model or hub name.")
    ],
    source: Annotated[Path | None, typer.Option(help="Training source: plain, .gz or .xz.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Or: prepared folder, whose training source is taken.")
    ] = None,
    valid: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="SOURCE REFERENCE", help="Measure the teacher's BLEU on this first."),
    ] = None,
    beam: Annotated[int, typer.Option(min=1, help="Beam width.")] = 5,
    length_penalty: Annotated[float, typer.Option(help="Exponent of the length.")] = 1.0,
    batch_tokens: BatchTokens = 16_384,
    device: Device = None,
    bf16: Bf16 = False,
) -> None:
    """Let a teacher translate the training text; the same command continues what was stopped.

    On several GPUs or machines: torchrun --nproc-per-node 8 -m oaxe.cli distill ...
    """
    from rich.console import Console

    if (source is None) == (data is None):
        raise typer.BadParameter("give either --source or --data")

    from oaxe.distillation.distill import distill, training_source

    finished = distill(
        out,
        teacher=teacher,
        source=training_source(data) if data else source,  # type: ignore[arg-type]
        beam=beam,
        length_penalty=length_penalty,
        batch_tokens=batch_tokens,
        bf16=bf16,
        device=device,
        valid=valid,
        console=Console(),
    )
    if not finished:
        raise typer.Exit(1)


@app.command()
def evaluate(
    hyp: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]FILE", help="Translations, a line each. Again for more."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]MODEL", help="A model that translates now. Again for more."),
    ] = None,
    ref: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="References, a line each. Again for more."),
    ] = None,
    multiref: Annotated[
        Path | None, typer.Option(help='Instead: JSON lines {"src": ..., "refs": [...]}.')
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Instead: a prepared folder.", file_okay=False)
    ] = None,
    split: Annotated[str, typer.Option(help="Of --data: valid or test.")] = "test",
    source: Annotated[
        Path | None, typer.Option(help="With --ref: text for --model to translate.")
    ] = None,
    lang: Annotated[
        str | None, typer.Option(help="Language of the references, such as de or zh.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Write all figures to this file.", dir_okay=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for scores.json, report.html, NAME.hyp.txt.", file_okay=False),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="System to compare with; default: the first, files before models."),
    ] = None,
    test: Annotated[
        Literal["ar", "bs"],
        typer.Option(help="p-values by approximate randomisation or by paired bootstrap."),
    ] = "ar",
    trials: Annotated[
        int | None, typer.Option(min=1, help="Of that test; default: 10000 of ar, 1000 of bs.")
    ] = None,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="BLEU and chrF without regard to case.")
    ] = False,
    lengths: Annotated[
        str, typer.Option(help="The most words of each bucket of BLEU by length.")
    ] = "10,20,30,40,50",
    examples: Annotated[
        int, typer.Option(min=0, help="Sentences that are shown side by side.")
    ] = 20,
    lm: Annotated[
        str | None, typer.Option(help="Run of a language model (model.kind lm): fluency.")
    ] = None,
    speed: Annotated[
        bool, typer.Option("--speed", help="Latency and throughput of the models.")
    ] = False,
    speed_sentences: Annotated[
        int, typer.Option(min=1, help="Sentences that latency is measured on.")
    ] = 100,
    length_candidates: LengthCandidates = None,
    beam: Beam = None,
    batch_tokens: BatchTokens = 16_384,
    device: Device = None,
    bf16: Bf16 = False,
) -> None:
    """Compare systems on a test set: BLEU, chrF, repetition, significance, and more of models."""
    check_parent(json)

    from rich.console import Console

    from oaxe.evaluation.evaluate import Options, evaluate
    from oaxe.evaluation.gold import read_gold
    from oaxe.evaluation.output import make_folder, write
    from oaxe.evaluation.scores import lengths_of
    from oaxe.evaluation.tables import show

    given = {"length_candidates": length_candidates, "beam": beam}
    options = Options(
        baseline=baseline,
        test=test,
        trials=trials or 0,
        lowercase=lowercase,
        lengths=lengths_of(lengths),
        examples=examples,
        lm=lm,
        speed=speed,
        speed_sentences=speed_sentences,
        device=device,
        bf16=bf16,
        batch_tokens=batch_tokens,
        decoding={name: value for name, value in given.items() if value is not None},
    )
    gold = read_gold(
        references=ref or (),
        multiref=multiref,
        data=data,
        split=split,
        source=source,
        language=lang,
    )
    if out is not None:
        make_folder(out)
    console = Console()
    report, systems = evaluate(gold, hyp or [], model or [], options, console)
    write(report, systems, json, out)  # before anything that a closed pipe could stop
    show(report, console)
    if out is not None:
        console.print(f"page: {out / 'report.html'}", highlight=False)


@config.command()
def check(
    configurations: Annotated[list[Path], typer.Argument(help="YAML files.")],
    changes: Overrides = None,
) -> None:
    """Read configurations and report everything that is wrong with them."""
    from oaxe.config import load
    from oaxe.errors import UserError
    from oaxe.training.settings import Settings

    wrong = 0
    for path in configurations:
        try:
            load(Settings, path, changes or [])
            typer.echo(f"{path}: fine")
        except UserError as error:
            wrong += 1
            typer.echo(str(error), err=True)
    raise typer.Exit(1 if wrong else 0)


@config.command()
def show() -> None:
    """Print every setting with its default and meaning, as YAML to start from."""
    from oaxe.config import documented
    from oaxe.training.settings import Settings

    typer.echo(documented(Settings), nl=False)


@reproduce.command()
def synthetic(
    preset: Annotated[
        Literal["tiny", "small", "full"],
        typer.Option(help="tiny: a CPU; small: a GPU; full: the paper's size."),
    ] = "tiny",
    out: Annotated[
        Path | None, typer.Option(help="Default: runs/synthetic/PRESET.", file_okay=False)
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions of what the paper shows.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Processes a GPU, or on the CPU.")] = 1,
    part: Annotated[
        list[str] | None,
        typer.Option(help="modes, lengths, numbers, switch or scratch; default: all."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="xe, axe, oaxe, oaxe-pretrained, ...; default: all."),
    ] = None,
) -> None:
    """Section 3: exact match against the number of orders, for XE, AXE and OaXE.

    The same command goes on where it was stopped; what is done is not done again.
    """
    from rich.console import Console

    from oaxe.synthetic.reproduce import run

    run(
        preset=preset,
        out=out or Path("runs/synthetic") / preset,
        seeds=seeds,
        jobs=jobs,
        parts=part or (),
        methods=method or (),
        console=Console(),
    )


add_commands(reproduce)


def run() -> None:
    """The program: a user's mistake gets its message, our own a traceback."""
    import os

    from oaxe.errors import UserError

    # Threads that spin while they wait make a step many times slower on cores that others use too.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        app()
    except UserError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    run()
