"""Files of n-gram models: a folder of our own, and ARPA, which KenLM and SRILM read and write.

ngrams.safetensors   of each order: words, how many of them each context has, log-probabilities and
                     back-off weights
config.json          format, order, vocabulary, precision, checksums of that file and the subwords

``config.json`` is written last: a folder that has it is whole.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from oaxe.support import strict_json
from oaxe.support.checksums import Checksum, checksum_of, problem
from oaxe.support.errors import UserError
from oaxe.support.files import appears_whole, write_json
from oaxe.text.corpus import Corpus, load_subwords
from oaxe.text.lines import read_lines
from oaxe.text.ngrams import NEVER, NGrams, Order, estimate
from oaxe.text.subwords import Subwords
from oaxe.text.symbols import BOS, EOS, SYMBOLS, UNK

FORMAT = 2
ARRAYS, CONFIG = FILES = ("ngrams.safetensors", "config.json")
NGRAMS = "ngrams"  # the folder of a model that has some, and what stands for it in decoding.lm
STEP = 1 / 16  # of logarithms in 8 bits, from 0 down to -255 steps
LOG_10 = float(np.log(10))
NAMES = {BOS: "<s>", EOS: "</s>", UNK: "<unk>"}  # the symbols that ARPA files have


def save_ngrams(
    folder: Path, ngrams: NGrams, subwords: Subwords, *, eight_bits: bool = False
) -> None:
    """Write a folder that :func:`load_ngrams` reads; with ``eight_bits`` logarithms are rounded."""
    arrays, n_contexts = dict[str, NDArray[Any]](), 1
    for n, order in enumerate(ngrams.orders, 1):
        context, words = np.divmod(order.keys, ngrams.vocab_size)
        counts = np.bincount(context, minlength=n_contexts)
        arrays |= {f"{n}.words": _small(words), f"{n}.counts": _small(counts)}
        logs = {f"{n}.log_probs": order.log_probs}
        if n < len(ngrams.orders):
            logs |= {f"{n}.backoffs": order.backoffs}
        arrays |= {name: _rounded(log) if eight_bits else log for name, log in logs.items()}
        n_contexts = len(words)
    data = save(arrays)
    config = {
        "format": FORMAT,
        "order": len(ngrams.orders),
        "vocab_size": ngrams.vocab_size,
        "ngrams": [len(order.keys) for order in ngrams.orders],
        "precision": "int8" if eight_bits else "float32",
        "subwords": checksum_of([subwords.model]).crc32,
        "file": vars(checksum_of([data])),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = {path.name.removesuffix(".part") for path in folder.iterdir()}
        others = sorted(names - set(FILES))
        if others:
            raise UserError(f"{folder} holds other things, such as {others[0]}; give a new folder")
        (folder / CONFIG).unlink(missing_ok=True)
        with appears_whole(folder / ARRAYS) as file:
            file.write(data)
        write_json(folder / CONFIG, config)
    except OSError as error:
        raise UserError(
            f"cannot write {folder}: {error.strerror}; make room, or name another"
        ) from error


def count_ngrams(data: Path, folder: Path, order: int, prune: Sequence[int] = ()) -> None:
    """Count the n-grams of the training targets of prepared data, and write their folder."""
    subwords = load_subwords(data)
    targets = Corpus.open(data, "train").targets
    save_ngrams(folder, estimate(targets, subwords.vocab_size, order, prune), subwords)


def read_config(folder: Path) -> dict[str, Any]:
    """The content of ``config.json``; UserError if the folder holds no n-grams of this format."""
    try:
        config = strict_json.read(folder / CONFIG)
    except (OSError, ValueError):
        config = None
    if not isinstance(config, dict) or "ngrams" not in config:
        raise UserError(f"{folder} holds no n-grams; make some with 'oaxe ngrams DATA -o {folder}'")
    if config.get("format") != FORMAT:
        raise UserError(
            f"{folder} has format {config.get('format')}, this version of oaxe reads {FORMAT}; "
            "make it again with 'oaxe ngrams'"
        )
    return config


def check_subwords(folder: Path, subwords: Subwords) -> None:
    """Raises UserError if the n-grams of a folder were counted with other subwords."""
    if read_config(folder).get("subwords") != checksum_of([subwords.model]).crc32:
        raise UserError(
            f"the n-grams in {folder} are of other subwords than the model; make them with 'oaxe "
            "ngrams' from the data that it was trained on"
        )


def check_vocabulary(folder: Path, found: int, vocab_size: int) -> None:
    """Raises UserError if the n-grams of a folder have another number of subwords."""
    if found != vocab_size:
        raise UserError(
            f"the n-grams in {folder} are of {found} subwords, the model has {vocab_size}; make "
            "them with 'oaxe ngrams' from the data that it was trained on"
        )


def load_ngrams(folder: Path) -> NGrams:
    """What :func:`save_ngrams` wrote; raises UserError if it is missing or damaged."""
    config = read_config(folder)
    path = folder / ARRAYS
    try:
        if wrong := problem(path, Checksum(**config["file"])):
            raise UserError(f"{wrong}; copy it again, or make it with 'oaxe ngrams'")
        arrays = load(path.read_bytes())
        vocab, orders, n_contexts = int(config["vocab_size"]), list[Order](), 1
        for n in range(1, config["order"] + 1):
            words, counts = arrays[f"{n}.words"], arrays[f"{n}.counts"]
            if len(counts) != n_contexts:
                raise ValueError(f"order {n} is of {len(counts)} contexts, not {n_contexts}")
            keys = np.repeat(np.arange(n_contexts), counts) * vocab + words
            log_probs = _logarithms(arrays[f"{n}.log_probs"])
            backoffs = _logarithms(arrays.get(f"{n}.backoffs", np.zeros(len(keys), np.float32)))
            orders.append(Order(keys, log_probs, backoffs))
            n_contexts = len(keys)
        return NGrams(vocab, tuple(orders))
    except (KeyError, TypeError, ValueError, SafetensorError) as error:
        raise UserError(f"{folder} is damaged: {error}; make it again with 'oaxe ngrams'") from None


def _small(numbers: NDArray[np.int64]) -> NDArray[Any]:
    """The numbers in the smallest type that holds the largest."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def _rounded(logs: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.rint(-logs / STEP).clip(0, 255).astype(np.uint8)


def _logarithms(found: NDArray[Any]) -> NDArray[np.float32]:
    """Logarithms as float32, from 8 bits or as they are."""
    logs = -STEP * found.astype(np.float32) if found.dtype == np.uint8 else found
    return logs.astype(np.float32)


def with_ngrams(
    folder: Path, decoding: Mapping[str, Any], subwords: Subwords, *, eight_bits: bool = False
) -> dict[str, Any]:
    """Copies the n-grams of these options, if any, into the folder of a model; the new options."""
    if not decoding.get("lm"):
        return dict(decoding)
    ngrams = load_ngrams(Path(decoding["lm"]))
    save_ngrams(folder / NGRAMS, ngrams, subwords, eight_bits=eight_bits)
    return {**decoding, "lm": NGRAMS}


def write_arpa(path: Path, ngrams: NGrams, subwords: Subwords) -> None:
    """All n-grams as text, logarithms to base 10."""
    names = _names(subwords)
    known = np.isin(np.arange(ngrams.vocab_size), list(names))
    with appears_whole(path) as file:
        shown = [int(known.sum()), *(len(order.keys) for order in ngrams.orders[1:])]
        counts = "".join(f"ngram {n}={count}\n" for n, count in enumerate(shown, 1))
        file.write(f"\\data\\\n{counts}".encode())
        words = [(word,) for word in range(ngrams.vocab_size)]
        for n, order in enumerate(ngrams.orders, 1):
            file.write(f"\n\\{n}-grams:\n".encode())
            if n > 1:
                context, last = np.divmod(order.keys, ngrams.vocab_size)
                pairs = zip(context.tolist(), last.tolist(), strict=True)
                words = [(*words[before], word) for before, word in pairs]
            values = (order.log_probs / LOG_10).tolist(), (order.backoffs / LOG_10).tolist()
            for text, log_prob, backoff in zip(words, *values, strict=True):
                if n > 1 or known[text[0]]:
                    behind = f"\t{backoff:.7g}" * (n < len(ngrams.orders))
                    said = " ".join(names[word] for word in text)
                    file.write(f"{max(log_prob, -99):.7g}\t{said}{behind}\n".encode())
        file.write(b"\n\\end\\\n")


def read_arpa(path: Path, subwords: Subwords) -> NGrams:
    """An ARPA file of subwords, such as ``lmplz`` makes of text that is split into them.

    Words that are no subwords are left out; at least half must be.
    """
    ids = {name: word for word, name in _names(subwords).items()}
    vocab, orders = subwords.vocab_size, list[Order]()
    numbers: dict[tuple[int, ...], int] = {}  # of the order below
    try:
        for n, entries in _sections(iter(read_lines(path))):
            table = dict[tuple[int, ...], tuple[float, float]]()
            n_lines = 0
            for words, log_prob, backoff in entries:
                n_lines += 1
                if all(word in ids for word in words):
                    table[tuple(ids[word] for word in words)] = log_prob, backoff
            if n == 1:
                if 2 * len(table) < n_lines:
                    raise UserError(
                        f"{n_lines - len(table):,} of the {n_lines:,} words of {path} are no "
                        "subwords of this data; estimate it on text that is split into them"
                    )
                unknown = table.get((UNK,), (NEVER, 0.0))[0]
                for word in range(vocab):
                    table.setdefault((word,), (unknown if word >= len(SYMBOLS) else NEVER, 0.0))
                numbers = {(): 0}
            keyed = {numbers[words[:-1]] * vocab + words[-1]: words for words in table}
            keys = sorted(keyed)
            numbers = {keyed[key]: number for number, key in enumerate(keys)}
            values = np.array([table[keyed[key]] for key in keys], np.float32).reshape(-1, 2)
            orders.append(Order(np.array(keys, np.int64), values[:, 0], values[:, 1]))
    except UserError:
        raise
    except (ValueError, IndexError) as error:
        raise UserError(f"{path} is not an ARPA file: {error}") from None
    except KeyError as error:
        raise UserError(
            f"{path} is not an ARPA file: it lacks the context {error.args[0]}"
        ) from None
    if not orders:
        raise UserError(f"{path} is not an ARPA file: it has no \\1-grams")
    return NGrams(vocab, tuple(order for order in orders if len(order.keys)))


Entry = tuple[list[str], float, float]  # words, log-probability, back-off weight


def _sections(lines: Iterator[str]) -> Iterator[tuple[int, Iterator[Entry]]]:
    """The entries of each order: words, and natural logarithms."""

    def entries(n: int) -> Iterator[Entry]:
        for line in lines:
            if not line.strip():
                return
            probability, words, *backoff = line.strip().split("\t")
            split = words.split(" ")
            if len(split) != n:
                raise ValueError(f"{line.strip()!r} is no n-gram of order {n}")
            log_10 = float(probability)
            log_prob = NEVER if log_10 <= -99 else LOG_10 * log_10
            yield split, log_prob, LOG_10 * float(backoff[0]) if backoff else 0.0

    for line in lines:
        if line.strip().endswith("-grams:"):
            n = int(line.strip()[1:].split("-")[0])
            yield n, entries(n)


def _names(subwords: Subwords) -> dict[int, str]:
    """The name of each word in ARPA files, which lack the other symbols."""
    words = {i: subwords.piece(i) for i in range(len(SYMBOLS), subwords.vocab_size)}
    return NAMES | words
