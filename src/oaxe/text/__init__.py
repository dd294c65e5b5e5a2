"""Where a line of text goes, in the order of the data flow.

datasets/      the name of a data set → its files, downloaded and verified
lines.py       a text file → its lines, pairs of files → pairs of lines
languages.py   language codes, BLEU's tokenizer, words or characters; guess.py for unlabelled text
bleu.py        translations and references → BLEU
subwords.py    lines ↔ token ids, with one vocabulary for both languages (ids in symbols.py)
prepare.py     pairs of files → a prepared folder (with encode.py, duplicates.py)
manifest.py    the layout of that folder, and the verification of its files
corpus.py      a prepared folder → sentences as token ids
plans.py       lengths of sentences → the updates and batches of an epoch
batches.py     a corpus and its plan → tensors, collated ahead
ngrams.py      a corpus → an n-gram model, whose files are in ngram_files.py
sentences.py   paragraphs → sentences, and back (with markup.py for HTML)
"""
