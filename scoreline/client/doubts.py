"""What scores give reason to doubt: the service's rule, for scores that are read in pages or come from many jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

SMALL_LABEL_MASS = 0.1
WARNED_SHARE = 0.1
WARNED_ITEMS = 100
EXAMPLES = 3
"""As in ``scoring/conversion.py`` of the service."""


@dataclass(slots=True)
class Doubts:
    """A tally of scores of one-token labels. Its size does not grow with their number."""

    _masses: Counter[float] = field(default_factory=Counter)  # rounded, for quantiles
    _small: int = 0
    _examples: list[int] = field(default_factory=list)
    _wins: list[int] = field(default_factory=list)  # of each label
    _seen: list[int] = field(default_factory=list)  # items that have so many labels

    def add(self, index: int, scores: Sequence[float], mass: float | None) -> None:
        """Count an item."""
        if mass is not None:
            self._masses[float(f"{mass:.2g}")] += 1
            if mass < SMALL_LABEL_MASS:
                self._small += 1
                if len(self._examples) < EXAMPLES:
                    self._examples.append(index)
        more = len(scores) - len(self._wins)
        self._wins += [0] * more
        self._seen += [0] * more
        highest = max(scores, default=0.0)
        for label, score in enumerate(scores):
            self._seen[label] += 1
            self._wins[label] += score == highest

    def warnings(
        self,
        items: str = "items",
        named: Callable[[int], str] = "items[{}]".format,
        label_named: Callable[[int], str] = "labels[{}]".format,
    ) -> list[str]:
        """Return the warnings that the service would give with all of it. named: how an item is named."""
        warnings = []
        total = self._masses.total()
        if self._small and self._small >= WARNED_SHARE * total:
            warnings.append(
                f"the labels have less than {SMALL_LABEL_MASS} of the probability together for {self._small:,} of "
                f"{total:,} {items}, such as {_listed(list(map(named, self._examples)))}: the prompt is "
                "probably not one that the model answers with these labels"
            )
        never = [
            label
            for label, (wins, seen) in enumerate(zip(self._wins, self._seen, strict=True))
            if not wins and seen >= WARNED_ITEMS
        ]
        if never:
            others = f"{len(never)} labels, such as " if len(never) > EXAMPLES else ""
            verb = "is" if len(never) == 1 else "are"
            listed = _listed(list(map(label_named, never[:EXAMPLES])))
            warnings.append(
                f"{others}{listed} {verb} the most probable of none of {self._seen[never[0]]:,} {items}: "
                "either no item calls for it, or it is not written as the model would write it"
            )
        return warnings

    def quantiles(self, *shares: float) -> list[float]:
        """Return the label mass that this share of the items reach at most, for each share; none without any mass."""
        total, found = self._masses.total(), []
        for share in shares if total else ():
            passed = 0
            for mass in sorted(self._masses):
                passed += self._masses[mass]
                if passed >= share * total:
                    found.append(mass)
                    break
        return found


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
