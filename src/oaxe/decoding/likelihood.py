"""How likely a language model finds given sentences."""

from collections.abc import Sequence

import torch

from oaxe.decoding.translator import Translator, batches, padded
from oaxe.losses import linear_xe_loss
from oaxe.model.masking import causal_inputs
from oaxe.support.errors import UserError
from oaxe.text.symbols import EOS, PAD


@torch.no_grad()
def log_likelihoods(
    lm: Translator, sentences: Sequence[Sequence[int]], *, batch_tokens: int = 16384
) -> list[float]:
    """log P of each sentence, its end included; natural logarithm.

    Args:
        lm: of kind ``"lm"``.
        sentences: subwords without BOS and EOS, at most ``max_length`` each.
        batch_tokens: the most places of a batch.
    """
    if lm.kind != "lm":
        raise UserError(
            f"a language model is needed, this is a translator of kind {lm.kind!r}; train one "
            "with model.kind lm"
        )
    model, device = lm.model, lm.model.output_weight.device
    was_training = model.training
    model.eval()
    found = [0.0] * len(sentences)
    try:
        encoded = model.encode(torch.tensor([[EOS]], device=device))  # shared by all of a batch
        # One more than there are tokens, so that the end of an empty sentence counts too.
        for batch in batches([len(tokens) + 1 for tokens in sentences], batch_tokens):
            target = padded([sentences[i] for i in batch]).long().to(device)
            inputs, wanted = causal_inputs(target)
            hidden = model.decode(inputs, inputs != PAD, encoded)
            losses = linear_xe_loss(hidden, model.output_weight, wanted, reduction="none")
            for i, loss in zip(batch, losses.double().sum(1).tolist(), strict=True):
                found[i] = -loss
    finally:
        model.train(was_training)
    return found
