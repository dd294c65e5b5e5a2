"""Is the difference to the baseline more than chance? sacreBLEU's paired tests."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sacrebleu.significance import PairedTest

from oaxe.evaluation.scores import Metrics

Test = Literal["ar", "bs"]
NAMES: dict[Test, str] = {"ar": "approximate randomisation", "bs": "paired bootstrap"}


def paired_test(
    metrics: Metrics,
    outputs: Mapping[str, Sequence[str]],
    baseline: str,
    *,
    test: Test = "ar",
    trials: int = 0,
) -> dict[str, dict[str, Any]]:
    """For each system but the baseline the p-values of its differences in BLEU and chrF.

    The same seed every time: sacreBLEU's own, which the environment can change (SACREBLEU_SEED).

    Args:
        outputs: of each system, the baseline among them.
        test: ``"ar"`` or ``"bs"``, see :data:`NAMES`.
        trials: 0 for sacreBLEU's default, 10,000 or 1,000.
    """
    others = [name for name in outputs if name != baseline]
    if not others:
        return {}
    systems = [(name, outputs[name]) for name in (baseline, *others)]
    run = PairedTest(systems, {"bleu": metrics.bleu, "chrf": metrics.chrf}, None, test, trials)
    signatures, results = run()
    found: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(others, 1):
        least = least_p(outputs[name], outputs[baseline])
        found[name] = {"baseline": baseline, "test": NAMES[test]}
        for key, column in (("bleu", "BLEU"), ("chrf", "chrF2")):
            first, result = results[column][0], results[column][number]
            p: float = result.p_value  # type: ignore[union-attr,assignment]
            difference = result.score - first.score  # type: ignore[union-attr]
            found[name][key] = {
                "difference": difference,
                "p": max(p, least) if difference else 1.0,
                "signature": str(signatures[column]),
            }
    return found


def least_p(one: Sequence[str], other: Sequence[str]) -> float:
    """What p cannot be below, where k sentences differ by more than their spaces: 2^(1 - k).

    Of the 2^k ways to exchange them, the given one and its opposite differ as much as was seen.
    sacreBLEU counts only those that differ more, and so finds everything significant for small k.

    Example:
        >>> least_p(["a", "b  c"], ["a", "b c"]), least_p(["a"], ["b"]), least_p("abcd", "abba")
        (1.0, 1.0, 0.5)
    """
    different = sum(a.split() != b.split() for a, b in zip(one, other, strict=True))
    return min(1.0, 2.0 ** (1 - different))
