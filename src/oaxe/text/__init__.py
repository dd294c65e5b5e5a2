"""Where a line of text goes, in the order of the data flow.

datasets/      the name of a data set → its files, downloaded and verified
lines.py       a text file → its lines, pairs of files → pairs of lines
languages.py   language codes, BLEU's tokenizer, words or characters
bleu.py        translations and references → BLEU
subwords.py    lines ↔ token ids, with one vocabulary for both languages (ids in symbols.py)
prepare.py     pairs of files → a prepared folder (with encode.py, duplicates.py)
manifest.py    the layout of that folder, and the verification of its files
corpus.py      a prepared folder → sentences as token ids
batches.py     sentences → padded batches, an epoch at a time
"""
