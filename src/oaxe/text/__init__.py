"""Where a line of text goes, in the order of the data flow.

datasets/      the name of a data set → its files, downloaded and verified
lines.py       a text file → its lines, pairs of files → pairs of lines
languages.py   what depends on the language: codes, BLEU's tokenizer, what a word is
subwords.py    lines ↔ token ids, with one vocabulary for both languages (ids in symbols.py)
prepare.py     pairs of files → a prepared folder (with encode.py, duplicates.py)
manifest.py    the layout of that folder, and whether its files are what was written
corpus.py      a prepared folder → sentences as token ids
batches.py     sentences → padded batches, an epoch at a time
"""
