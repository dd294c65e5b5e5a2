"""The special symbols. All distinct: a mask is not an unknown word, a blank is not padding."""

SYMBOLS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>", "<blank>", "<length>")
PAD, BOS, EOS, UNK, MASK, BLANK, LENGTH = range(len(SYMBOLS))
