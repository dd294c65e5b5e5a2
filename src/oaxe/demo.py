"""The paper's own example, "I ate pizza this afternoon": what each loss charges and learns."""

from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from oaxe.losses import oaxe_loss, xe_loss
from oaxe.plots import alignment_cells, plot_alignment

WORDS = ["I", "ate", "pizza", "this", "afternoon", "ε"]
BLANK = WORDS.index("ε")

# One meaning, three orders, and how often each is seen.
ORDERS = {
    "I ate pizza this afternoon": 0.40,
    "this afternoon I ate pizza": 0.35,
    "I this afternoon ate pizza": 0.25,
}


def run(out: Path, seed: int, console: Console) -> None:
    torch.manual_seed(seed)
    out.mkdir(parents=True, exist_ok=True)
    show_losses(console)
    picture = out / "alignment.png"
    logits, target = pizza()
    plot_alignment(logits, target, WORDS.__getitem__, blank=BLANK).savefig(picture, dpi=150)
    show_training(console)
    console.print(f"\nThe cost matrix with the three alignments: [bold]{picture}[/]")


def pizza() -> tuple[Tensor, Tensor]:
    """A model that says "this afternoon I ate pizza" where the target has another order.

    Returns logits ``(5, vocab)`` and target ``(5,)``.
    """
    target = ids("I ate pizza this afternoon")
    predicted = ids("this afternoon I ate pizza")
    probability = torch.full((5, len(WORDS)), 0.04)
    probability[torch.arange(5), target] = 0.10
    probability[:, BLANK] = 0.16
    probability[torch.arange(5), predicted] = 0.0
    probability[torch.arange(5), predicted] = 1 - probability.sum(1)
    return probability.log(), target


def ids(sentence: str) -> Tensor:
    return torch.tensor([WORDS.index(word) for word in sentence.split()])


def show_losses(console: Console) -> None:
    logits, target = pizza()
    probability = logits.softmax(-1)
    columns = [*target.tolist(), BLANK]
    table = Table(
        title="What each loss asks of every place, and its probability", title_justify="left"
    )
    table.add_column("place")
    table.add_column("model says")
    cells = alignment_cells(logits, target, blank=BLANK)
    for name in cells:
        table.add_column(f"{name} wants")
    for place, word in enumerate(logits.argmax(-1).tolist()):
        row = [Text(str(place + 1)), Text(WORDS[word])]
        for _, positions in cells.values():
            wanted = [columns[column] for at, column in positions if at == place]
            right = word in wanted
            text = " + ".join(f"{WORDS[w]} {probability[place, w]:.2f}" for w in wanted)
            row.append(Text(text, style="green" if right else "red"))
        table.add_row(*row)
    table.add_section()
    losses = [Text(f"{loss:.2f}", style="bold") for loss, _ in cells.values()]
    table.add_row("", Text("loss", style="bold"), *losses)
    console.print(table)
    console.print(
        "Every word is right, all five in another place. XE charges for all of them; AXE can shift "
        "words but not swap them;\nOaXE finds the order that the model has chosen and charges for "
        "nothing but doubt.\n"
    )


def show_training(console: Console, steps: int = 300) -> None:
    """Train the five places themselves on sentences in three orders, with XE and then with OaXE."""
    after_xe = train(torch.randn(5, len(WORDS)) * 0.1, "XE", steps)
    results = {
        "XE": train(after_xe, "XE", steps),
        "XE, then OaXE": train(after_xe, "OaXE", steps),
    }
    table = Table(title="What each loss learns from three orders of it", title_justify="left")
    for header in ("trained with", "best word in every place", "mean confidence", "a valid order"):
        table.add_column(header)
    for name, logits in results.items():
        confidence, best = logits.softmax(-1).max(-1)
        sentence = " ".join(WORDS[word] for word in best.tolist())
        valid = sentence in ORDERS
        mark = Text("yes", style="green") if valid else Text("no", style="red")
        table.add_row(name, repeats_marked(sentence), f"{confidence.mean():.2f}", mark)
    console.print(table)
    console.print(
        "XE averages the orders place by place and stutters; OaXE settles on one of them."
    )


def train(start: Tensor, loss: str, steps: int, batch: int = 64) -> Tensor:
    logits = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=0.05)
    sentences = torch.stack([ids(order) for order in ORDERS])
    weights = torch.tensor([*ORDERS.values()])
    for _ in range(steps):
        target = sentences[weights.multinomial(batch, replacement=True)]
        predicted = logits.expand(batch, -1, -1)
        value = (xe_loss if loss == "XE" else oaxe_loss)(predicted, target)
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return logits.detach()


def repeats_marked(sentence: str) -> Text:
    text, seen = Text(), set[str]()
    for word in sentence.split():
        text.append(word + " ", style="bold red" if word in seen else "")
        seen.add(word)
    return text
