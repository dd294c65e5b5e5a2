"""What a training step reports besides its loss."""

from torch import Tensor

# A sum over the batch and what to divide it by, each a tensor without dimensions: the log shows
# the quotient of both sums over all batches and ranks since its last line.
Statistics = dict[str, tuple[Tensor, Tensor]]
