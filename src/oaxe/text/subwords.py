"""One joint vocabulary of subwords for both languages: SentencePiece BPE with our symbols."""

import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from oaxe.support.errors import UserError
from oaxe.text.symbols import BOS, EOS, PAD, SYMBOLS, UNK

ALONE = 16  # sentences: to call it with each takes less than the thread that it starts for a list
FEW = 64  # sentences: threads take longer to start than these to encode


class Subwords:
    """Text to token ids and back.

    The model brings text to NFKC and single spaces by itself. A character that it has never seen
    becomes UNK; the names of the symbols (``<mask>``) in a text are ordinary characters.
    """

    def __init__(self, model: bytes) -> None:
        self.model = model
        self._processor = SentencePieceProcessor(model_proto=model)
        self.vocab_size: int = self._processor.get_piece_size()

    def __reduce__(self) -> tuple[type["Subwords"], tuple[bytes]]:  # to pickle it
        return Subwords, (self.model,)

    @classmethod
    def load(cls, path: Path) -> "Subwords":
        """Raises UserError if the file is missing or not a model with our symbols."""
        try:
            model = path.read_bytes()
        except OSError as error:
            raise UserError(
                f"cannot read the subword model {path}: {error.strerror}; "
                "it is the subwords.model of a folder made by 'oaxe prepare'"
            ) from error
        try:
            subwords = cls(model)
            names = tuple(subwords.piece(i) for i in range(len(SYMBOLS)))
        except (RuntimeError, IndexError) as error:
            raise UserError(
                f"{path} is not a SentencePiece model, or damaged: {error}; give the "
                "subwords.model of a folder made by 'oaxe prepare', or leave it out"
            ) from error
        if names != SYMBOLS:
            raise UserError(
                f"{path} is not a subword model of this package: its first pieces are "
                f"{' '.join(names)}, they must be {' '.join(SYMBOLS)}; make one with 'oaxe prepare'"
            )
        return subwords

    def encode(self, sentences: Sequence[str], threads: int = -1) -> list[list[int]]:
        """Token ids of each sentence, without BOS and EOS; -1: a thread for each core."""
        if len(sentences) < ALONE:
            return [self._processor.encode(sentence) for sentence in sentences]
        threads = 1 if len(sentences) < FEW else threads
        return self._processor.encode(list(sentences), num_threads=threads)

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each list of ids; special symbols, UNK among them, leave no trace."""
        first = len(SYMBOLS)
        words = [[int(i) for i in row if i >= first] for row in ids]
        if len(words) < ALONE:
            return [self._processor.decode_ids(row) for row in words]
        return self._processor.decode(words, num_threads=1)  # more take longer

    def piece(self, token: int) -> str:
        return self._processor.id_to_piece(token)


def train_subwords(
    sentences: Iterable[str], path: Path, vocab_size: int, *, character_coverage: float = 1.0
) -> Subwords:
    """Learn a BPE vocabulary of both languages (in memory: give a sample) and write it.

    The same sentences in the same order give the same file.

    Args:
        vocab_size: number of pieces, the special symbols included.
        character_coverage: share of all characters of the text that get a piece; below 1 the
            rarest become UNK and leave room for more merges.

    Raises:
        UserError: the text has too few different pieces, or too many characters, for
            ``vocab_size``; the message names a size that works.
    """
    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            normalization_rule_name="nfkc",
            pad_id=PAD,
            bos_id=BOS,
            eos_id=EOS,
            unk_id=UNK,
            pad_piece=SYMBOLS[PAD],
            bos_piece=SYMBOLS[BOS],
            eos_piece=SYMBOLS[EOS],
            unk_piece=SYMBOLS[UNK],
            # Control symbols never match text; they take the ids after UNK, in this order.
            control_symbols=list(SYMBOLS[UNK + 1 :]),
            max_sentence_length=1 << 20,  # its default leaves out long lines without a word
            num_threads=16,  # stored in the model: a fixed number keeps the file the same
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(explain(str(error), vocab_size)) from error
    path.write_bytes(model.getvalue())
    return Subwords(model.getvalue())


def explain(message: str, vocab_size: int) -> str:
    """SentencePiece's message in words that say what to do."""
    most = re.search(r"too high .*<= (\d+)", message)
    # Of spaces alone, one piece is learned.
    if "sentences_.empty()" in message or (most and int(most[1]) <= len(SYMBOLS) + 1):
        return "there is no text to learn subwords from: every line is blank; give text"
    if most:
        return (
            f"the text is too small for a vocabulary of {vocab_size:,} subwords: "
            f"set the vocabulary size to {most[1]} or less"
        )
    if least := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return (
            f"a vocabulary of {vocab_size:,} subwords is too small for the characters of the text: "
            f"set the vocabulary size to {least[1]} or more, or the character coverage below 1"
        )
    return f"SentencePiece could not learn a vocabulary of {vocab_size:,} subwords: {message}"
