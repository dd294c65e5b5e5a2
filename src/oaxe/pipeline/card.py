"""The card of a finished model: README.md, as the Hugging Face hub shows it."""

import json
from pathlib import Path

from oaxe.pipeline.plan import Plan
from oaxe.pipeline.report import ONE_PASS, Scores, table
from oaxe.support import strict_json
from oaxe.support.files import write_whole
from oaxe.support.tables import markdown
from oaxe.text.languages import language_name
from oaxe.text.manifest import read_manifest


def write_card(out: Path, model: Path, plan: Plan, *, tuned: bool) -> None:
    """Write README.md of the model from the report and the manifest; tuned: for bigrams as well."""
    report = strict_json.read(out / "report.json")
    scores = {name: Scores(**found) for name, found in report["models"].items()}
    asked, own = plan.asked, scores[ONE_PASS]
    languages = [language_name(code) for code in (asked.source_language, asked.target_language)]
    splits = read_manifest(out / "data").splits
    data = ", ".join(f"{name} {split.pairs:,} pairs" for name, split in splits.items())
    runs = [("teacher", plan.teacher), ("one-pass", plan.one_pass), ("bigrams", plan.bigrams)]
    done = [
        f"{_updates(out / name):,} updates of {of.update_tokens:,} tokens"
        for name, of in runs[: 2 + tuned]
    ]
    more = f", then {done[2]} for bigrams" if tuned else ""
    text = "distilled by the teacher" if asked.distil else "raw"
    card = f"""---
language: {json.dumps([asked.source_language, asked.target_language])}
pipeline_tag: translation
library_name: oaxe
---

# {languages[0]} to {languages[1]} in one pass

A non-autoregressive translator: all words are predicted at once. System {own.system}, size
{plan.size}, {own.parameters:,} weights, {plan.vocab_size:,} subwords.

```python
from oaxe import Translator

print(Translator.from_pretrained("{out / "model"}").translate(["..."]))
```

{report["why"]}

{markdown(table(scores, plan))}
BLEU: {report["signature"]}. Measured on {report["environment"]["processor"]}, {asked.device},
{report["environment"]["threads"]} threads.

Data: {data}; training text {text}. An autoregressive teacher was trained for {done[0]}. This model
began with its weights, and was trained for {done[1]}{more}.

Made by oaxe {report["environment"]["oaxe"]}:

```sh
oaxe build {out} {asked.command}
```
"""
    write_whole(model / "README.md", card)


def _updates(run: Path) -> int:
    """How many updates a run had, which may be fewer than were planned."""
    return int(strict_json.read(run / "result.json")["step"])
