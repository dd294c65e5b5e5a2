"""``oaxe evaluate``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from oaxe.commands.options import Decoding, with_decoding


@with_decoding
def evaluate(
    decoding: Decoding,
    hyp: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FILE", help="Translations to score, one a line. Can be repeated."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]MODEL", help="A model that translates the source now. Can be repeated."
        ),
    ] = None,
    ref: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="References, one a line. Repeat it for several references of each sentence.",
        ),
    ] = None,
    multiref: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='References as JSON lines {"src": ..., "refs": [...]}. Default: --ref or --data.',
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Prepared folder that has source and references. Default: --ref or --multiref.",
            file_okay=False,
        ),
    ] = None,
    split: Annotated[
        str, typer.Option(help="Which part of --data to evaluate on: valid or test.")
    ] = "test",
    source: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --ref: the text for --model to translate, one sentence a line. "
            "Default: none.",
        ),
    ] = None,
    lang: Annotated[
        str | None,
        typer.Option(
            help="Language of the references, such as de or zh. Default: as the models say."
        ),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write all results to this JSON file. Default: none.",
            dir_okay=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for scores.json, report.html and NAME.hyp.txt. Default: none.",
            file_okay=False,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="System that the others are compared with. Default: the first file, or model.",
        ),
    ] = None,
    test: Annotated[
        Literal["ar", "bs"],
        typer.Option(
            help="Significance test: approximate randomisation (ar) or paired bootstrap (bs)."
        ),
    ] = "ar",
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, help="Trials of the significance test. Default: 10000 for ar, 1000 for bs."
        ),
    ] = None,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Ignore case in BLEU and chrF. Default: cased.")
    ] = False,
    lengths: Annotated[
        str, typer.Option(help="Upper ends of the buckets of BLEU by length, in reference words.")
    ] = "10,20,30,40,50",
    examples: Annotated[
        int, typer.Option(min=0, help="Number of sentences to show side by side.")
    ] = 20,
    lm: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Language model that measures fluency; `oaxe train multi30k/lm` trains one. "
            "Default: none.",
        ),
    ] = None,
    speed: Annotated[
        bool,
        typer.Option(
            "--speed", help="Measure latency and throughput of the models. Default: do not."
        ),
    ] = False,
    speed_sentences: Annotated[
        int, typer.Option(min=1, help="Number of sentences to measure latency on.")
    ] = 100,
) -> None:
    """Compare systems on a test set: BLEU, chrF, and more.

    Significance and repetition; for models also speed and what their page shows.
    """
    from oaxe.evaluation.bleu import parse_lengths
    from oaxe.evaluation.evaluate import Options, evaluate
    from oaxe.evaluation.models import unused_options
    from oaxe.evaluation.outputs import names_and_paths
    from oaxe.evaluation.references import read_references
    from oaxe.evaluation.show import show, write
    from oaxe.support.console import new_console
    from oaxe.support.extras import require_extra
    from oaxe.support.files import check_output, make_folder

    options = Options(
        baseline=baseline,
        test=test,
        trials=trials or 0,
        lowercase=lowercase,
        lengths=parse_lengths(lengths),
        examples=examples,
        lm=lm,
        speed=speed,
        speed_sentences=speed_sentences,
        device=decoding.device,
        bf16=decoding.bf16,
        batch_tokens=decoding.batch_tokens,
        decoding=decoding.given,
        systems=decoding.systems or (),
    )
    references = read_references(
        references=ref or (),
        multiref=multiref,
        data=data,
        split=split,
        source=source,
        language=lang,
    )
    check_output(json, *references.files, *map(Path, names_and_paths(hyp or []).values()))
    if out is not None:
        require_extra("plot", "--out")
        make_folder(out)
    console = new_console()
    report, outputs = evaluate(references, hyp or [], model or [], options, console)
    report["notes"] += unused_options(report, options.decoding)
    write(report, outputs, json, out)  # before anything that a closed pipe could stop
    show(report, console)
    if out is not None:
        console.print(f"page: {out / 'report.html'}")
