"""Directed acyclic graphs (DAG): all paths of vertices that say the target.

Huang et al., 2022. Each of L vertices predicts a word and which of the later vertices comes next; a
translation is a path from the first vertex to the last. Paths that say the words y of a target add
up word by word, f_t[j] being those that say its first t words and have come to vertex j:

    f_1[0] = log P_0(y_1),  f_t[j] = log P_j(y_t) + log sum_{i<j} exp(f_{t-1}[i] + log E_ij)
"""

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.arguments import (
    Reduction,
    Targets,
    at_least_float32,
    check_devices,
    check_targets,
    check_tensors,
    is_float,
    kept_first,
    leading,
    not_negative,
    prediction_mask,
    reduce,
)
from oaxe.losses.lattice import (
    allowed,
    arrivals,
    best_states,
    finite,
    kernels,
    make_differentiable,
    posteriors,
    rests_of_paths,
    sum_of_paths,
)
from oaxe.losses.linear_softmax import as_linear_would
from oaxe.losses.own_words import log_probs_of, own_words, sentence_costs

ROUNDING = 1e-2  # of a log-probability near 0, in half precision


def dag_loss(
    logits: Tensor,
    links: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    logit_mask: Tensor | None = None,
    zero_infinity: bool = False,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""The target's negative log-likelihood in a graph whose vertices predict words and successors.

    .. math::
        L_{DAG} = -\log \sum_{0 = a_1 < \dots < a_M = L - 1}
        \prod_t P_{a_t}(y_t) \prod_{t > 1} E_{a_{t-1} a_t}

    The first word is said at the first vertex and the last at the last one: begin and end targets
    with words that mark it. There is no second derivative.

    Args:
        logits: ``(batch, vertices, vocab)``; half precision is computed in float32.
        links: log E, ``(batch, vertices, vertices)``: log-probability of going from vertex i to j.
            Only those of j > i are used; -inf is a way that cannot be gone.
        target: ``(batch, length)`` token ids.
        ignore_index: targets of this value take no part.
        logit_mask: ``(batch, vertices)`` bool, True for the vertices that take part: the first ones
            of each sentence. Default: all of them.
        zero_infinity: a target that no path can say, such as one with more words than vertices, has
            an infinite loss. True: it contributes 0. It has no gradient either way.
        reduction: ``"mean"`` divides by the number of targets that are not ignored, ``"sum"``, or
            ``"none"`` for one value a sentence, ``(batch,)``.

    A sentence without targets contributes 0.

    Example:
        >>> logits = torch.eye(3)[[0, 2, 1]].unsqueeze(0) * 9
        >>> links = torch.tensor([[[0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]]).log()
        >>> dag_loss(logits, links, torch.tensor([[0, 1]]), reduction="sum")  # half of all paths
        tensor(0.6936)
    """
    targets, words, links, mask = dag_words(logits, links, target, logit_mask, ignore_index)
    emissions = log_probs_of(logits, words)
    losses = dag_losses(emissions.transpose(1, 2), links, targets, mask, zero_infinity)
    return reduce(losses, targets, reduction)


def linear_dag_loss(
    input: Tensor,
    linear_weight: Tensor,
    links: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    ignore_index: int = -100,
    logit_mask: Tensor | None = None,
    zero_infinity: bool = False,
    reduction: Reduction = "mean",
    capacity: int | None = None,
) -> Tensor:
    """:func:`dag_loss` of ``F.linear(input, linear_weight, linear_bias)``, without those logits.

    Example:
        >>> hidden = torch.eye(3)[[0, 2, 1]].unsqueeze(0) * 9
        >>> links = torch.tensor([[[0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]]).log()
        >>> linear_dag_loss(hidden, torch.eye(3), links, torch.tensor([[0, 1]]), reduction="sum")
        tensor(0.6936)
    """
    layer = as_linear_would(input, linear_weight, linear_bias)
    targets, words, links, mask = dag_words(layer.stand_in, links, target, logit_mask, ignore_index)
    emissions = -sentence_costs(layer, words, mask, capacity).transpose(1, 2)
    return reduce(dag_losses(emissions, links, targets, mask, zero_infinity), targets, reduction)


@torch.no_grad()
def dag_best_path(
    logits: Tensor,
    links: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    logit_mask: Tensor | None = None,
) -> Tensor:
    """The likeliest of the paths that :func:`dag_loss` sums over.

    Args:
        logits: ``(batch, vertices, vocab)``.
        links: ``(batch, vertices, vertices)`` log-probabilities, used for j > i.
        target: ``(batch, length)`` token ids.
        ignore_index: targets of this value take no part.
        logit_mask: ``(batch, vertices)`` bool, True for the vertices that take part.

    Returns:
        ``(batch, length)`` int64: the vertex that says each word of the target; -1 for ignored
        ones, and for all words of a target that no path can say. Among equally likely paths the
        choice is the same every time.

    Example:
        >>> logits = torch.eye(3)[[0, 2, 1]].unsqueeze(0) * 9
        >>> links = torch.tensor([[[0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]]).log()
        >>> dag_best_path(logits, links, torch.tensor([[0, 1]]))
        tensor([[0, 2]])
    """
    targets, words, links, mask = dag_words(logits, links, target, logit_mask, ignore_index)
    logits = at_least_float32(logits)
    scores = own_words(logits, words)
    emissions = (scores - logits.logsumexp(2, keepdim=True)).transpose(1, 2)
    return dag_path(emissions, links, targets, mask)


@torch.no_grad()
def linear_dag_best_path(
    input: Tensor,
    linear_weight: Tensor,
    links: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    ignore_index: int = -100,
    logit_mask: Tensor | None = None,
    capacity: int | None = None,
) -> Tensor:
    """:func:`dag_best_path` of ``F.linear(input, linear_weight, linear_bias)``, without its logits.

    Example:
        >>> hidden = torch.eye(3)[[0, 2, 1]].unsqueeze(0) * 9
        >>> links = torch.tensor([[[0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]]).log()
        >>> linear_dag_best_path(hidden, torch.eye(3), links, torch.tensor([[0, 1]]))
        tensor([[0, 2]])
    """
    layer = as_linear_would(input, linear_weight, linear_bias)
    targets, words, links, mask = dag_words(layer.stand_in, links, target, logit_mask, ignore_index)
    emissions = -sentence_costs(layer, words, mask, capacity).transpose(1, 2)
    return dag_path(emissions, links, targets, mask)


def dag_words(
    logits: Tensor, links: Tensor, target: Tensor, logit_mask: Tensor | None, ignore_index: int
) -> tuple[Targets, Tensor, Tensor, Tensor]:
    """The targets, their words with ignored ones last, the links in float32 or better, the mask."""
    check_tensors(links=links, target=target)
    if target.dim() == 3 and links.dim() == 2:
        raise ValueError("links and target are swapped; the order is (logits, links, target)")
    targets = check_targets(logits, target, ignore_index, same_length=False)
    check_devices("predictions", logits, links=links)
    batch, vertices = logits.shape[:2]
    if links.shape != (batch, vertices, vertices) or not is_float(links):
        raise ValueError(
            "links must be floating point log-probabilities from each vertex to each, of shape "
            f"{(batch, vertices, vertices)}; got {links.dtype} of shape {tuple(links.shape)}"
        )
    mask = prediction_mask(logits, logit_mask)
    if mask.device.type == "cpu" and not torch.compiler.is_compiling():
        wrong = (mask[:, 1:] & ~mask[:, :-1]).any(dim=1)
        if wrong.any():
            rows = wrong.nonzero().flatten().tolist()
            raise ValueError(
                "logit_mask must be True for the first vertices of a sentence and False for the "
                f"rest; it is not in batch rows {rows[:10]}"
            )
        used = (mask[:1].unsqueeze(2) & mask[:1].unsqueeze(1)).triu(1)
        if (links.detach()[:1] > ROUNDING)[used].any():
            warnings.warn(
                "links of the first sentence are above 0, so they are no log-probabilities; give "
                "the log_softmax of each vertex's scores, -inf for vertices that are not after it",
                stacklevel=3,
            )
    words = targets.words.gather(1, kept_first(targets.mask))
    return targets, words, at_least_float32(links), mask


def dag_losses(
    emissions: Tensor, links: Tensor, targets: Targets, mask: Tensor, zero_infinity: bool
) -> Tensor:
    """``(batch,)``, of the words' log-probabilities ``(batch, words, vertices)``."""
    given = _operands(emissions, links, targets, mask)
    total, _ = _sum(*given)
    losses = not_negative(-total)  # all paths may add up to 1.0000001
    losses = losses.masked_fill(given[2] == 0, 0)
    return losses.masked_fill(losses == torch.inf, 0) if zero_infinity else losses


def dag_path(emissions: Tensor, links: Tensor, targets: Targets, mask: Tensor) -> Tensor:
    """``(batch, length)`` vertices of the best path, of the emissions of :func:`dag_losses`."""
    vertices: Tensor = _best_path(*_operands(emissions, links, targets, mask))
    vertices = vertices[:, : targets.mask.shape[1]]
    return vertices.scatter(1, kept_first(targets.mask), vertices)


def _operands(
    emissions: Tensor, links: Tensor, targets: Targets, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the operators take; there is a word and a vertex, even if they take no part."""
    no_word, no_vertex = (int(size == 0) for size in emissions.shape[1:])
    dtype = torch.promote_types(emissions.dtype, links.dtype)
    emissions = F.pad(emissions.to(dtype), (0, no_vertex, 0, no_word))
    links = F.pad(links.to(dtype), (0, no_vertex, 0, no_vertex))
    return emissions.contiguous(), links.contiguous(), targets.mask.sum(1), mask.sum(1)


def dag_arrivals(links: Tensor, logit_mask: Tensor | None = None) -> Tensor:
    """``(batch, vertices)``: the probability that a path comes to each vertex, differentiable.

    Their sum is the expected length of what the graph says. The arguments are those of
    :func:`dag_loss`; from each vertex but the last, the links must add up to 1.

    Example:
        >>> links = torch.tensor([[[0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]]).log()
        >>> dag_arrivals(links)
        tensor([[1.0000, 0.5000, 1.0000]])
    """
    moves = dag_moves(links, logit_mask)
    first = torch.arange(moves.shape[1], device=moves.device) == 0
    found = arrivals(first.to(moves.dtype).expand(len(moves), -1), moves)
    return found if logit_mask is None else found * logit_mask


def dag_moves(links: Tensor, logit_mask: Tensor | None) -> Tensor:
    """Probabilities of going from vertex to vertex, 0 where there is no way."""
    moves = at_least_float32(links).exp()
    if logit_mask is not None:
        moves = torch.where(logit_mask.unsqueeze(1), moves, 0)
    return torch.where(_later(links.shape[1], links), moves, 0)


def _later(vertices: int, like: Tensor) -> Tensor:
    """``(vertices, vertices)`` bool: j > i."""
    vertex = torch.arange(vertices, device=like.device)
    return vertex > vertex.unsqueeze(1)


class DAGLattice:
    """Steps are the words of the target, states are vertices."""

    def __init__(
        self, emissions: Tensor, links: Tensor, n_words: Tensor, n_vertices: Tensor
    ) -> None:
        batch, _, vertices = emissions.shape
        real = leading(n_vertices, vertices).unsqueeze(1)
        vertex = torch.arange(vertices, device=links.device)
        self.emissions = emissions.masked_fill(~real, -torch.inf)
        self.links = links.masked_fill(~(real & _later(vertices, links)), -torch.inf)
        self.n_steps = n_words
        self.start = allowed(vertex == 0, emissions).expand(batch, -1)
        self.end = allowed(vertex == n_vertices.unsqueeze(1) - 1, emissions)
        self.origins = vertex.unsqueeze(1)

    def ways_in(self, before: Tensor) -> Tensor:
        return before.unsqueeze(2) + self.links

    def ways_out(self, after: Tensor) -> Tensor:
        return after.unsqueeze(2) + self.links.transpose(1, 2)


@torch.library.custom_op("oaxe::dag", mutates_args=())
def _sum(
    emissions: Tensor, links: Tensor, n_words: Tensor, n_vertices: Tensor
) -> tuple[Tensor, Tensor]:
    given = emissions, links, n_words, n_vertices
    if triton := kernels(emissions):
        return triton.dag_sum(*given)
    return sum_of_paths(DAGLattice(*given))


@_sum.register_fake
def _(emissions: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    return emissions.new_empty(emissions.shape[0]), torch.empty_like(emissions)


@torch.library.custom_op("oaxe::dag_backward", mutates_args=())
def _backward(
    gradient: Tensor,
    total: Tensor,
    alpha: Tensor,
    emissions: Tensor,
    links: Tensor,
    n_words: Tensor,
    n_vertices: Tensor,
) -> tuple[Tensor, Tensor]:
    given = emissions, links, n_words, n_vertices
    if triton := kernels(emissions):
        return triton.dag_backward(gradient, total, alpha, *given)
    lattice = DAGLattice(*given)
    beta = rests_of_paths(lattice)
    of_emissions = posteriors(lattice, alpha, beta, total)
    onward = lattice.emissions + beta - finite(total).view(-1, 1, 1)
    taken = leading(n_words, onward.shape[1]).unsqueeze(2)
    onward = onward.masked_fill(~taken, -torch.inf)
    of_links = torch.zeros_like(links)
    for step in range(1, emissions.shape[1]):
        ways = lattice.ways_in(alpha[:, step - 1]) + onward[:, step].unsqueeze(1)
        of_links += ways.exp()
    factor = gradient.view(-1, 1, 1)
    return of_emissions * factor, of_links * factor


@_backward.register_fake
def _(
    gradient: Tensor, total: Tensor, alpha: Tensor, emissions: Tensor, links: Tensor, *_: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(emissions), torch.empty_like(links)


make_differentiable(_sum, _backward)


@torch.library.custom_op("oaxe::dag_best_path", mutates_args=())
def _best_path(emissions: Tensor, links: Tensor, n_words: Tensor, n_vertices: Tensor) -> Tensor:
    """``(batch, words)`` int64 vertices."""
    given = emissions, links, n_words, n_vertices
    if triton := kernels(emissions):
        return triton.dag_best_path(*given)
    return best_states(DAGLattice(*given))


@_best_path.register_fake
def _(emissions: Tensor, *_: Tensor) -> Tensor:
    return emissions.new_empty(emissions.shape[:2], dtype=torch.int64)
