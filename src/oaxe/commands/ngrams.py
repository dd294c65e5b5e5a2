"""``oaxe ngrams``."""

from pathlib import Path
from typing import Annotated

import typer


def ngrams(
    data: Annotated[Path, typer.Argument(help="Prepared folder, whose training targets are read.")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Folder to make, for decoding.lm.", file_okay=False),
    ],
    order: Annotated[int, typer.Option(min=1, max=8, help="Subwords of the longest n-grams.")] = 4,
    prune: Annotated[
        str,
        typer.Option(
            metavar="COUNTS",
            help="Leave out n-grams that occur no more often than this: a number for each order.",
        ),
    ] = "0",
    arpa: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Read this ARPA file of subwords, such as KenLM makes, in place of the text. "
            "Default: none.",
            dir_okay=False,
        ),
    ] = None,
    to_arpa: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also write an ARPA file. Default: none.", dir_okay=False
        ),
    ] = None,
) -> None:
    """Count the n-grams of the target language.

    Beam search with ctc and dag asks them.
    """
    from oaxe.support.console import new_console
    from oaxe.support.errors import UserError
    from oaxe.support.files import check_output
    from oaxe.text.corpus import Corpus, load_subwords
    from oaxe.text.ngram_files import read_arpa, save_ngrams, write_arpa
    from oaxe.text.ngrams import check_order, estimate

    try:
        limits = [int(limit) for limit in prune.split(",")]
    except ValueError:
        raise UserError(f"--prune wants whole numbers such as 0,0,1, got {prune!r}") from None
    check_order(order, limits)
    check_output(to_arpa, arpa)
    subwords = load_subwords(data)
    if arpa is not None:
        found = read_arpa(arpa, subwords)
    else:
        found = estimate(Corpus.open(data, "train").targets, subwords.vocab_size, order, limits)
    save_ngrams(output, found, subwords)
    if to_arpa is not None:
        write_arpa(to_arpa, found, subwords)
    counts = ", ".join(f"{len(of.keys):,} of order {n}" for n, of in enumerate(found.orders, 1))
    new_console().print(
        f"{counts}; use them with: --set method=beam --set lm={output}", soft_wrap=True
    )
