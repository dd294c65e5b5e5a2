"""Paths through a lattice: the sum of all, the best one, and what they say on average.

A path is in one state at each step, from a start to an end; its log-probability adds up what its
states emit and the ways between them cost. In CTC the steps are positions, and the states are the
words of the target with blanks around them; in a directed acyclic graph (DAG) the steps are the
words of the target, and the states are vertices.

All of this is PyTorch, on any device and without waiting for it: the reference of
:mod:`oaxe.losses.kernels.lattice`, which has the sum and the best path for a GPU.
"""

from functools import reduce
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor

from oaxe.losses.arguments import check_n, no_second_derivative, triton_kernels, unrounded

MOST_STATES = 8_192  # that a kernel can hold at once


class Lattice(Protocol):
    """What :class:`oaxe.losses.ctc.CTCLattice` and :class:`oaxe.losses.dag.DAGLattice` have."""

    emissions: Tensor  # (batch, steps, states): log-probabilities
    n_steps: Tensor  # (batch,)
    start: Tensor  # (batch, states): 0 for the states that a path may begin with, else -inf
    end: Tensor  # (batch, states): the same for its end
    origins: Tensor  # (ways, states): the state that each way into a state comes from

    def ways_in(self, before: Tensor) -> Tensor:
        """``(batch, ways, states)``: log-probability of each way into each state, given those of
        the states ``before``, ``(batch, states)``."""

    def ways_out(self, after: Tensor) -> Tensor:
        """The same for the ways out of each state, given those of the states ``after``."""


def sum_of_paths(lattice: Lattice) -> tuple[Tensor, Tensor]:
    """``(batch,)``: log-probability of all paths together, -inf where there is none.

    Also that of all their beginnings, ``(batch, steps, states)``: up to a step and a state.
    """
    emissions = lattice.emissions
    beginnings = [lattice.start + emissions[:, 0]]
    for step in range(1, emissions.shape[1]):
        beginnings.append(log_of_sum(lattice.ways_in(beginnings[-1])) + emissions[:, step])
    alpha = torch.stack(beginnings, 1)
    return _at_the_end(lattice, alpha).logsumexp(1), alpha


def rests_of_paths(lattice: Lattice) -> Tensor:
    """``(batch, steps, states)``: log-probability of all that may follow a state, without it."""
    emissions = lattice.emissions
    rests = [lattice.end]
    for step in range(emissions.shape[1] - 1, 0, -1):
        rest = log_of_sum(lattice.ways_out(rests[-1] + emissions[:, step]))
        rests.append(torch.where((step < lattice.n_steps).unsqueeze(1), rest, lattice.end))
    return torch.stack(rests[::-1], 1)


def log_of_sum(ways: Tensor) -> Tensor:
    """``(batch, states)``, of the ways into or out of each."""
    if ways.shape[1] == 3:
        return reduce(torch.logaddexp, ways.unbind(1))  # less work than logsumexp, for so few
    return ways.logsumexp(1)


def posteriors(lattice: Lattice, alpha: Tensor, beta: Tensor, total: Tensor) -> Tensor:
    """``(batch, steps, states)``: probability of a state among all paths, 0 if there is none.

    It is the gradient of the sum by the emissions.
    """
    taken = torch.arange(alpha.shape[1], device=alpha.device) < lattice.n_steps.unsqueeze(1)
    log_posterior = alpha + beta - finite(total).view(-1, 1, 1)
    return torch.where(taken.unsqueeze(2), log_posterior.exp(), 0)


def finite(total: Tensor) -> Tensor:
    """0 where there is no path: what is then divided by it is 0 as well."""
    return total.masked_fill(total == -torch.inf, 0)


def best_states(lattice: Lattice) -> Tensor:
    """``(batch, steps)``: the states of the best path, -1 after its end and where there is none.

    Among equals it is the first way of ``ways_in``, and the first end.
    """
    emissions, n_steps = lattice.emissions, lattice.n_steps
    origins = lattice.origins.expand(-1, emissions.shape[2])
    scores, origin = [lattice.start + emissions[:, 0]], []
    for step in range(1, emissions.shape[1]):
        ways = lattice.ways_in(scores[-1])
        way = ways.argmax(1)
        scores.append(ways.gather(1, way.unsqueeze(1)).squeeze(1) + emissions[:, step])
        origin.append(origins.gather(0, way))
    at_the_end = _at_the_end(lattice, torch.stack(scores, 1))
    last = at_the_end.argmax(1, keepdim=True)
    exists = at_the_end.gather(1, last) > -torch.inf
    state, states = last, [last]
    for step in range(emissions.shape[1] - 1, 0, -1):
        under_way = (step < n_steps).unsqueeze(1)
        state = torch.where(under_way, origin[step - 1].gather(1, state), last)
        states.append(state)
    found = torch.cat(states[::-1], 1)
    taken = torch.arange(found.shape[1], device=found.device) < n_steps.unsqueeze(1)
    return torch.where(exists & taken, found, -1)


def _at_the_end(lattice: Lattice, scores: Tensor) -> Tensor:
    """``(batch, states)``: scores of the states at the last step that may be an end, else -inf."""
    last = (lattice.n_steps - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, scores.shape[2])
    ends = scores.gather(1, last).squeeze(1) + lattice.end
    return ends.masked_fill((lattice.n_steps == 0).unsqueeze(1), -torch.inf)


def arrivals(start: Tensor, moves: Tensor) -> Tensor:
    r"""``(batch, states)``: the expected number of visits to each state, differentiable.

    :math:`a_j = s_j + \sum_{i<j} a_i A_{ij}`, a triangular system.

    Args:
        start: s, ``(batch, states)``: the probability that a path begins at a state.
        moves: A, ``(batch, states, states)``: the probability of going from state i to j; 0 unless
            j > i.
    """
    one = torch.eye(moves.shape[1], dtype=moves.dtype, device=moves.device)
    system = one - moves.transpose(1, 2)
    return torch.linalg.solve_triangular(system, start.unsqueeze(2), upper=False).squeeze(2)


def expected_ngrams(visits: Tensor, moves: Tensor, emissions: Tensor, n: int) -> Tensor:
    r"""``(batch, words - n + 1)``: how often words k, ..., k + n - 1 follow each other on average.

    :math:`v_1 = a \circ p(y_k),\; v_m = (v_{m-1} A) \circ p(y_{k+m-1})`, and the sum of
    :math:`v_n`, for all k at once; differentiable.

    Args:
        visits: a, ``(batch, states)``, as :func:`arrivals` returns them.
        moves: A, ``(batch, states, states)``.
        emissions: p, ``(batch, words, states)``: the probability of each word in each state.
        n: how many words an n-gram has.
    """
    check_n(n)
    count = max(0, emissions.shape[1] - n + 1)
    reached = visits.unsqueeze(1) * emissions[:, :count]
    with unrounded(moves.device):
        for later in range(1, n):
            reached = (reached @ moves) * emissions[:, later : later + count]
    return reached.sum(2)


def allowed(where: Tensor, like: Tensor) -> Tensor:
    """0 where it is True, -inf elsewhere."""
    return like.new_zeros(()).where(where, like.new_full((), -torch.inf))


def kernels(emissions: Tensor, states: int = 0) -> ModuleType | None:
    """The same in Triton: for float32 on a GPU; ``states`` that are to be held at once."""
    if not emissions.is_cuda or emissions.dtype != torch.float32 or states > MOST_STATES:
        return None
    return triton_kernels("lattice")


def make_differentiable(total: Any, backward: Any) -> None:
    """An operator of four tensors whose first result has a gradient, by an operator for that.

    ``backward`` is given that gradient, both results and the four tensors, and returns the gradient
    of the first tensor, or of the first ones.
    """

    def differentiate(ctx: Any, gradient: Tensor | None, _: None) -> tuple[Any, ...]:
        if gradient is None:
            return (None,) * 4
        found = backward(gradient.contiguous(), *ctx.saved_tensors)
        gradients = found if isinstance(found, tuple) else (found,)
        return *gradients, *(None,) * (4 - len(gradients))

    total.register_autograd(differentiate, setup_context=_remember)
    backward.register_autograd(no_second_derivative)


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*output, *inputs)
