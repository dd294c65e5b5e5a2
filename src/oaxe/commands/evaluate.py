"""``oaxe evaluate``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from oaxe.commands.options import BatchTokens, Beam, Bf16, Device, LengthCandidates, LengthPenalty


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
        str | None,
        typer.Option(help="Language of the references, such as de or zh; models know theirs."),
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
    length_penalty: LengthPenalty = None,
    batch_tokens: BatchTokens = 16_384,
    device: Device = None,
    bf16: Bf16 = False,
) -> None:
    """Compare systems on a test set: BLEU, chrF, repetition, significance, and more of models."""
    from oaxe.evaluation.bleu import parse_lengths
    from oaxe.evaluation.evaluate import Options, evaluate
    from oaxe.evaluation.models import unused_options
    from oaxe.evaluation.outputs import names_and_paths
    from oaxe.evaluation.references import read_references
    from oaxe.evaluation.show import make_folder, show, write
    from oaxe.support.console import new_console
    from oaxe.support.files import check_output

    given = {
        "length_candidates": length_candidates,
        "beam": beam,
        "length_penalty": length_penalty,
    }
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
        device=device,
        bf16=bf16,
        batch_tokens=batch_tokens,
        decoding={name: value for name, value in given.items() if value is not None},
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
        make_folder(out)
    console = new_console()
    report, outputs = evaluate(references, hyp or [], model or [], options, console)
    report["notes"] += unused_options(report, options.decoding)
    write(report, outputs, json, out)  # before anything that a closed pipe could stop
    show(report, console)
    if out is not None:
        console.print(f"page: {out / 'report.html'}", highlight=False)
