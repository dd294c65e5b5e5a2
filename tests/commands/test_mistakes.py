"""Mistakes that users make: each is explained, with the next step, and shows no traceback.

Those of the command line run as the program does. Whatever is only doubtful is done, with a
warning.
"""

import gzip
import io
import json
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import oaxe
from benchmarks.__main__ import app as benchmarks
from oaxe.commands import app
from reproduction.__main__ import app as reproduction
from tests.runs import settings_of, train_small

EN = "a dog is on the street\nthe man and the woman are with a child\nhe was in the house\n"
DE = "ein Hund ist auf der Straße\nder Mann und die Frau sind mit dem Kind\ner war in dem Haus\n"


DEEP = "[" * 100_000  # more than a reader of JSON goes into


@pytest.fixture(scope="module")
def folder(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a user's folder may hold: text, prepared data, a run, things from elsewhere."""
    here = tmp_path_factory.mktemp("mistakes")
    for name, text in (("a", EN), ("b", DE)):  # neutral names
        (here / f"train.{name}").write_text(text * 20)
    texts = {
        "en.txt": EN, "de.txt": DE, "short.de": DE[:30], "empty.en": "", "mac.en": "a\rb\rc\r",
        "broken.yaml": "run: [x\n", "twice.yaml": "run: x\nrun: y\n", "list.yaml": "- run\n",
        "typo.yaml": "run: x\ndata: {folder: data, update_token: 5}\n", "refs.jsonl": "{}\n",
        "other/config.json": '{"model_type": "marian"}', "torn/config.json": '{"format": 2,',
        "notdata/manifest.json": '{"name": "a web page"}', "unfinished/config.yaml": "run: x\n",
        "lm/config.json": '{"format": 1, "order": 4}', "deep.jsonl": DEEP + "\n",
        "deep/config.json": DEEP, "deep/manifest.json": DEEP, "number.yaml": "5\n",
        "blank.en": "\n\n", "space.en": " \n\t\n",
    }  # fmt: skip
    for name, text in texts.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(text)
    (here / "latin1.de").write_bytes(DE.encode("latin-1"))
    (here / "utf16.en").write_bytes(EN.encode("utf-16"))
    (here / "zipped.en").write_bytes(gzip.compress(EN.encode()))
    (here / "cut.en.gz").write_bytes(gzip.compress(EN.encode())[:-9])
    shutil.copytree(data, here / "data")
    train_small(settings_of(here / "data", here / "run", train__steps=2, train__save_every=1))
    shutil.copytree(here / "run/model", here / "damaged")
    weights = bytearray((here / "damaged/model.safetensors").read_bytes())
    weights[-1] ^= 1
    (here / "damaged/model.safetensors").write_bytes(weights)
    return here


PREPARE = "prepare out --from en --to de --train"
BAD_COMMANDS = [  # the command, and what its message names: the problem, and the next step
    ("trian", "no such command: trian; did you mean train", "There are build"),
    ("config nonsense", "No such command 'nonsense'", "config --help"),
    ("config show latin1.de", "latin1.de is not valid YAML: 'utf-8'", "save it as UTF-8"),
    ("config check latin1.de", "latin1.de is not valid YAML: 'utf-8'", "save it as UTF-8"),
    ("train multi30k/oax", "no configuration of that name", "did you mean multi30k/oaxe"),
    ("train nowhere.yaml", "no file nowhere.yaml", "oaxe config list"),
    ("train run", "run is a folder", "give its configuration, run/config.yaml"),
    ("train broken.yaml", "broken.yaml", "line"),
    ("train number.yaml", "number.yaml must hold sections of `key: value`, got 5", "config show"),
    ("train twice.yaml", "run", "twice"),
    ("train list.yaml", "list.yaml must hold sections", "oaxe config show"),
    ("train typo.yaml", "update_token", "did you mean data.update_tokens"),
    ("train multi30k/oaxe --set optim.lr=fast", "optim.lr", "number"),
    ("train multi30k/oaxe --set lr=1", "lr", "optim.lr"),
    ("train multi30k/oaxe --set optim.lr", "optim.lr", "KEY=VALUE"),
    ("train multi30k/oaxe --set model.system=glatt", "glatt", "did you mean glat"),
    ("train multi30k/oaxe --set data.folder=nowhere", "nowhere is no folder", "oaxe prepare"),
    ("train multi30k/oaxe --set data.folder=notdata", "notdata", "oaxe prepare"),
    ("train multi30k/oaxe --set data.folder=deep", "deep/manifest.json is damaged: maximum",
     "oaxe prepare"),
    ("train multi30k/xe --set data.folder=data --set train.init_from=gone", "gone is no folder",
     "train.init_from=null"),
    (f"{PREPARE} train.a", "requires 2 arguments", "the source, then the target"),
    ("prepare out --train train.a --from en --to de", "got only train.a", "source and target"),
    (f"{PREPARE} nowhere.en train.b", "cannot read nowhere.en", "check the path"),
    (f"{PREPARE} en.txt short.de", "en.txt has 3 lines, short.de has 2", "line n of one"),
    (f"{PREPARE} empty.en empty.en", "empty", "one sentence a line"),
    (f"{PREPARE} en.txt latin1.de", "latin1.de, line 1 is not UTF-8", "iconv"),
    (f"{PREPARE} utf16.en de.txt", "utf16.en, line 1 is not UTF-8", "iconv"),
    (f"{PREPARE} zipped.en de.txt", "zipped.en is compressed", "rename it to zipped.en.gz"),
    (f"{PREPARE} cut.en.gz de.txt", "cut.en.gz cannot be read", "fetch or compress it again"),
    (f"{PREPARE} mac.en mac.en", "old Macs", "convert it"),
    (f"{PREPARE} en.txt de.txt --vocab-size 99999", "99,999", "set the vocabulary size to"),
    (f"{PREPARE} en.txt de.txt --character-coverage 0.95", "0.95", "[0.98, 1]"),
    (f"{PREPARE} en.txt de.txt --max-length 1 --vocab-size 90", "en.txt and de.txt is left: 3",
     "--max-length"),
    (f"{PREPARE} en.txt de.txt --subwords latin1.de", "latin1.de is not a SentencePiece model",
     "leave it out"),
    (f"{PREPARE} space.en space.en", "every line is blank", "give text"),
    (f"{PREPARE} de.txt en.txt --from english", "'english' is no code", "such as de"),
    (f"{PREPARE} short.de empty.en --from en --to de", "swapped", "comes first"),
    ("prepare data --from en --to de --train en.txt de.txt", "data was prepared from something",
     "--overwrite"),
    ("prepare notdata --from en --to de --train en.txt de.txt", "not from 'oaxe prepare'",
     "choose another folder"),
    ("prepare deep --from en --to de --train en.txt de.txt", "deep/manifest.json is damaged",
     "--overwrite"),
    ("prepare en.txt/out --from en --to de --train en.txt de.txt", "Not a directory",
     "give another one"),
    ("export", "Missing argument", "export --help"),
    ("translate How are you", "unexpected extra argument", "needs quotes"),
    ("translate --model nowhere/at/all en.txt", "no folder nowhere/at/all", "check the path"),
    ("translate --model run/modle en.txt", "no folder run/modle", "one of those in run"),
    ("translate --model en.txt en.txt", "en.txt is a file", "folder of a run"),
    ("translate --model data en.txt", "holds no translator", "oaxe train"),
    ("translate --model other en.txt", "another toolkit", "oaxe train made"),
    ("translate --model torn en.txt", "is not JSON", "fetch the model again"),
    ("translate --model deep en.txt", "deep/config.json is not JSON", "fetch the model again"),
    ("translate --model damaged en.txt", "damaged/model.safetensors", "again"),
    ("translate --model unfinished en.txt", "is not finished", "run the command that began it"),
    ("translate --model lm en.txt", "lm holds n-grams, no translator", "--set lm=lm"),
    ("translate --model runs/gone en.txt", "runs/gone is no folder here", "check the path"),
    ("translate --model run en.txt -o data", "cannot write data: it is a folder", "give a file"),
    ("translate --model run data", "data is a folder", "one sentence a line"),
    ("translate --model run nowhere.txt", "nowhere.txt looks like a file, and there is none",
     "give a file of one sentence a line"),
    ("translate --model run en.txt --beam 4", "beam is not an option", "length_candidates"),
    ("translate --model run en.txt --set lenght_candidates=3", "lenght_candidates",
     "length_candidates"),
    ("translate --model run en.txt -o en.txt", "would be overwritten", "another name"),
    ("translate --model run en.txt -o no/such/out.txt", "no folder no/such", "create it"),
    ("translate --model run en.txt --threads 100000", "--threads", "less than or equal to 1024"),
    ("translate --model run en.txt --device abacus", "--device abacus", "cuda"),
    ("evaluate --hyp en.txt", "references come from one of", "--ref"),
    ("evaluate --ref en.txt", "nothing to evaluate", "give --hyp, --model"),
    ("evaluate --model run --ref en.txt", "--model needs text", "give --source"),
    ("evaluate --hyp short.de --ref de.txt", "short.de has 2 lines, de.txt has 3", "line n"),
    ("evaluate --hyp de.txt --ref de.txt --baseline x", "--baseline x is not among", "de"),
    ("evaluate --hyp de.txt --multiref refs.jsonl", "refs.jsonl, line 1 must be", '"refs"'),
    ("evaluate --hyp de.txt --multiref deep.jsonl", "deep.jsonl, line 1 must be", '"refs"'),
    ("evaluate --hyp de.txt --data data --split train", "--split must be valid or test", "train"),
    ("evaluate --model run --source en.bb --ref de.aa", "run translates aa to bb", "direction"),
    ("distill --out out --teacher nowhere/at/all --source en.txt", "no folder nowhere/at/all",
     "check the path"),
    ("export nowhere/at/all out", "no folder nowhere/at/all", "check the path"),
    ("export run out --lm lm", "run is a cmlm, whose search asks no n-grams", "leave out --lm"),
    ("ngrams data -o data", "data holds other things, such as manifest.json", "a new folder"),
    ("ngrams data -o out --prune 0,0,0,1,1", "5 limits of pruning for 4 orders", "leave some out"),
    ("ngrams nowhere -o lm", "nowhere", "oaxe prepare"),
    ("serve --model nowhere/at/all", "no folder nowhere/at/all", "check the path"),
    ("serve --model run --api-keys nowhere", "cannot read the API keys nowhere", "one key a line"),
    ("serve --model run --allow-origin site", "site is no site", "https://example.org"),
    ("serve --model run --allow-host https://me", "https://me is no name", "leave out https://"),
    ("data get multi30k", "multi30k", "multi30k-en-de"),
    ("build out --from en --to de --train blank.en blank.en", "no words: every line is blank",
     "check them"),
    ("build out --from en --to de --train en.txt de.txt --minutes inf", "--minutes",
     "less than or equal to 1000000"),
    ("build out --from en --to de --train en.txt", "requires 2 arguments",
     "the source, then the target"),
]  # fmt: skip


def run(
    command: str, program: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str]:
    """The exit code, and everything that was printed, in one line."""
    monkeypatch.setattr(sys, "argv", ["oaxe", *command.split()])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # app.run changes it
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        code = 0
        try:
            app.run(program)
        except SystemExit as left:
            code = int(left.code or 0)
    said = capsys.readouterr()
    texts = [said.out, said.err, *(f"warning: {warning.message}" for warning in warned)]
    return code, " ".join(" ".join(texts).split())


@pytest.fixture
def user(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    for name in ("en.bb", "de.aa"):
        shutil.copy(folder / "en.txt", folder / name)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return lambda command, program=app.app: run(command, program, capsys, monkeypatch)


def test_there_are_enough() -> None:
    assert len({command for command, *_ in BAD_COMMANDS}) >= 40


@pytest.mark.parametrize(("command", "problem", "advice"), BAD_COMMANDS)
def test_a_mistake_is_explained(
    user: Callable[..., tuple[int, str]], command: str, problem: str, advice: str
) -> None:
    before = sorted(Path().rglob("*"))
    code, said = user(command)
    assert code in (1, 2), said
    assert "Traceback" not in said
    assert problem in said, said
    assert advice in said, said
    left = [path for path in set(Path().rglob("*")) - set(before) if path.is_file()]
    assert not left, "a mistake leaves nothing behind"


def test_an_unknown_data_set_of_a_reproduction(user: Callable[..., tuple[int, str]]) -> None:
    code, said = user("divergent --data nonsense", reproduction)
    assert code == 1
    assert "there is no data set 'nonsense'; there are multi30k-en-de" in said


@pytest.mark.parametrize("name", ["nowhere", "en.txt", "refs.jsonl"])
def test_what_a_benchmark_did_not_write(user: Callable[..., tuple[int, str]], name: str) -> None:
    code, said = user(f"page {name}", benchmarks)
    assert code == 1
    assert name in said
    assert "give what --json of `training` or `cpu-quality` wrote" in said
    assert "Traceback" not in said


def test_a_demonstration_where_nothing_can_be_written(user: Callable[..., tuple[int, str]]) -> None:
    code, said = user("demo --out en.txt/demo", reproduction)
    assert code == 1
    assert "cannot make the folder en.txt/demo: Not a directory; choose another one" in said


DOUBTFUL = [  # commands that are done, and what they warn of
    ("prepare out --vocab-size 90 --from en --to de --train train.b train.a",
     "train.b looks like German and train.a like English; the text to translate comes first"),
    ("prepare out --vocab-size 60 --from en --to de --train train.a train.a",
     "source and target are the same file, train.a"),
    ("prepare out --vocab-size 90 --from en --to en --train train.a train.b",
     "source and target language are both en"),
    ("prepare out --vocab-size 90 --from en --to de --train train.a train.b "
     "--valid train.a train.b", "--valid is the training text"),
    ("translate --model english de.txt", "de.txt looks like German already"),
    ("evaluate --model english --source train.b --ref train.a",
     "train.b looks like German already"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "warning"), DOUBTFUL)
def test_what_is_seldom_meant_is_done_with_a_warning(
    user: Callable[..., tuple[int, str]], folder: Path, command: str, warning: str
) -> None:
    shutil.copytree(folder / "run/model", "english", dirs_exist_ok=True)
    config = json.loads(Path("english/config.json").read_text())
    Path("english/config.json").write_text(json.dumps(config | {"languages": ["en", "de"]}))
    code, said = user(command)
    shutil.rmtree("out", ignore_errors=True)
    assert code == 0, said
    assert f"warning: {warning}" in said or f": {warning}" in said, said
    assert said.count(warning) == 1


LIB: Any = oaxe  # whose types forbid most of these calls
LOGITS, TARGET = torch.randn(2, 3, 5), torch.tensor([[1, 2, 3], [4, 1, -100]])
BAD_CALLS: list[tuple[Callable[[], object], str, str]] = [
    (lambda: LIB.oaxe_loss(LOGITS.flatten(0, 1), TARGET.flatten()), "batch, length", "got"),
    (lambda: LIB.oaxe_loss(LOGITS, TARGET[:1]), "batch size 2", "1"),
    (lambda: LIB.oaxe_loss(LOGITS, TARGET + 3), "target[0, 1] is 5", "0..4"),
    (lambda: LIB.oaxe_loss(LOGITS, TARGET.float()), "float", "long"),
    (lambda: LIB.oaxe_loss(LOGITS, TARGET.to("meta")), "on meta", "target.to('cpu')"),
    (lambda: LIB.oaxe_loss(LOGITS, TARGET, ignore_index=None), "None", "leave it at -100"),
    (lambda: LIB.oaxe_loss(LOGITS, TARGET, ignore_index=1.5), "1.5", "leave it at -100"),
    (lambda: LIB.oaxe_loss(LOGITS[..., :0], TARGET), "vocabulary is empty", "(2, 3, 0)"),
    (lambda: LIB.oaxe_loss(LOGITS, TARGET, weight=torch.ones(5, device="meta")), "weight on meta",
     "weight.to('cpu')"),
    (lambda: LIB.bag_of_ngrams_loss(LOGITS, TARGET, n=1.5), "n must be a whole number", "1.5"),
    (lambda: LIB.ctc_loss(LOGITS, TARGET, blank=0, logit_mask=torch.ones(2, 3, device="meta") > 0),
     "logit_mask on meta", "logit_mask.to('cpu')"),
    (lambda: LIB.linear_xe_loss(LOGITS, torch.ones(7, 5), TARGET, linear_bias=3), "linear_bias",
     "tensor, got int"),
    (lambda: LIB.linear_xe_loss(LOGITS, torch.ones(7, 5, device="meta"), TARGET),
     "linear_weight on meta", "linear_weight.to('cpu')"),
    (lambda: LIB.linear_xe_loss(LOGITS, torch.ones(7, 5), TARGET, capacity=-1), "capacity", "-1"),
    (lambda: LIB.oaxe_loss(LOGITS, TARGET, reduction="avg"), "'avg'", '"mean"'),
    (lambda: LIB.oaxe_loss(LOGITS, TARGET, truncation=2.0), "2.0", "1"),
    (lambda: LIB.oaxe_loss(LOGITS, TARGET, label_smoothing=-1), "-1", "1"),
    (lambda: LIB.oaxe_loss(LOGITS, TARGET, weight=torch.ones(4)), "4", "5"),
    (lambda: LIB.oaxe_loss(LOGITS.tolist(), TARGET), "list", "tensor"),
    (lambda: LIB.oaxe_loss(LOGITS * float("nan"), TARGET), "NaN", "look at the logits"),
    (lambda: LIB.oaxe_loss(LOGITS[:, :2], TARGET), "2", "3"),
    (lambda: LIB.axe_loss(LOGITS, TARGET, blank=5), "blank is 5", "0..4"),
    (lambda: LIB.ctc_loss(LOGITS, TARGET, blank=1), "holds the blank (1)", "no word has"),
    (lambda: LIB.linear_assignment(LOGITS[0]), "(batch, rows, columns)", "cost.unsqueeze(0)"),
    (lambda: LIB.linear_assignment(LOGITS.long()), "torch.int64", "cost.float()"),
    (lambda: LIB.linear_assignment(LOGITS, torch.ones(2, 3)), "mask", "square"),
    (lambda: LIB.dag_loss(LOGITS, TARGET, torch.zeros(2, 3, 3)), "swapped",
     "(logits, links, target)"),
    (lambda: LIB.Translator.from_pretrained("nowhere/at/all"), "nowhere/at/all", "check"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "problem", "advice"), BAD_CALLS)
def test_a_wrong_call_is_explained(
    call: Callable[[], object], problem: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert problem in str(caught.value)
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("call", "warning"),
    [
        (lambda: oaxe.oaxe_loss(LOGITS.softmax(-1), TARGET), "as probabilities do"),
        (lambda: oaxe.axe_loss(LOGITS, TARGET, blank=1), "holds the blank"),
    ],
)
def test_a_doubtful_call_warns(call: Callable[[], object], warning: str) -> None:
    with pytest.warns(UserWarning, match=warning):
        call()
