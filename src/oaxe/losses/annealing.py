"""XE annealing: how much of the loss is still cross entropy."""


def annealed_weight(epoch: float, total_epochs: float, c: float = 16.0, lam: float = 0.95) -> float:
    r"""The weight :math:`T_m` of XE in the joint loss, section 2.3 of the paper.

    .. math:: T_m = \max(0, 1 - c^{m - \lambda M})

    The joint loss is ``t * xe_loss(...) + (1 - t) * oaxe_loss(...)``. With the paper's constants it
    stays near 1 and falls to 0 over the last two epochs before :math:`\lambda M`; from there on
    OaXE trains alone. With fewer than 20 epochs, ``range(total_epochs)`` ends before: count parts
    of epochs. Counted in updates, the weight falls within two of them.

    Args:
        epoch: m, may be fractional.
        total_epochs: M.
        c: how suddenly the weight falls; above 1.
        lam: :math:`\lambda`, the share of training after which XE is gone; in [0, 1].

    Example:
        >>> [round(annealed_weight(m, 20), 3) for m in (0, 17, 18, 18.5, 19, 20)]
        [1.0, 0.996, 0.938, 0.75, 0.0, 0.0]
    """
    if not (total_epochs > 0 and c > 1 and 0 <= lam <= 1):
        raise ValueError(
            "annealed_weight needs total_epochs > 0, c > 1 and lam in [0, 1]; "
            f"got total_epochs={total_epochs}, c={c}, lam={lam}"
        )
    exponent = epoch - lam * total_epochs
    return 1.0 - c**exponent if exponent < 0 else 0.0
