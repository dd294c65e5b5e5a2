"""p-values of the difference to the baseline, by sacreBLEU's paired tests."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from oaxe.evaluation.references import References
from oaxe.text.bleu import bleu_metric

Test = Literal["ar", "bs"]
NAMES: dict[Test, str] = {"ar": "approximate randomisation", "bs": "paired bootstrap"}


def paired_test(
    references: References,
    outputs: Mapping[str, Sequence[str]],
    baseline: str,
    *,
    lowercase: bool = False,
    test: Test = "ar",
    trials: int = 0,
) -> dict[str, dict[str, Any]]:
    """p-values of the differences in BLEU and chrF, of each output but the baseline.

    The seed is sacreBLEU's own, and fixed; the environment can change it (SACREBLEU_SEED).

    Args:
        outputs: by name, with the baseline.
        test: ``"ar"`` or ``"bs"``, see :data:`NAMES`.
        trials: 0 for sacreBLEU's default, 10,000 or 1,000.
    """
    others = [name for name in outputs if name != baseline]
    if not others:
        return {}
    bleu = bleu_metric(references.language, lowercase=lowercase)
    metrics = {"bleu": bleu, "chrf": CHRF(lowercase=lowercase)}
    named = [(name, outputs[name]) for name in (baseline, *others)]
    signatures, results = PairedTest(named, metrics, references.streams, test, trials)()
    found: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(others, 1):
        lowest = lowest_p(outputs[name], outputs[baseline])
        found[name] = {"baseline": baseline, "test": NAMES[test]}
        for key, column in (("bleu", "BLEU"), ("chrf", "chrF2")):
            first, result = results[column][0], results[column][number]
            p: float = result.p_value  # type: ignore[union-attr,assignment]
            difference = result.score - first.score  # type: ignore[union-attr]
            found[name][key] = {
                "difference": difference,
                "p": max(p, lowest) if difference else 1.0,
                "signature": str(signatures[column]),
            }
    return found


def lowest_p(one: Sequence[str], other: Sequence[str]) -> float:
    """The lowest possible p if k sentences differ by more than their spaces: 2^(1 - k).

    Two of the 2^k ways to exchange these sentences differ as much as the given outputs: the given
    one and its opposite. sacreBLEU counts only those that differ more, so that for small k
    everything would be significant.

    Example:
        >>> lowest_p(["a", "b  c"], ["a", "b c"]), lowest_p(["a"], ["b"]), lowest_p("abcd", "abba")
        (1.0, 1.0, 0.5)
    """
    different = sum(a.split() != b.split() for a, b in zip(one, other, strict=True))
    return min(1.0, 2.0 ** (1 - different))
