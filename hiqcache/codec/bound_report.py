"""What a check of an error bound found; `bound.py` and `ladder_bound.py` fill it in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from hiqcache.errors import HiQCacheError

Term = tuple[Tensor, Tensor]
"""What was found and its limit, float64."""


class BoundViolation(HiQCacheError):
    """Records or decoded rows that break the bound or differ from the exact quantiser."""


@dataclass(frozen=True)
class BoundReport:
    """What the check saw. Errors and utilisations cover the heads that are finite.

    Parameters
    ----------
    elements
        Values checked, those of non-finite heads included.
    nonfinite_heads
        Heads of one token that hold a NaN or an infinity, and so must decode to NaN.
    max_normalized_error
        Largest |x^ - x| / s.
    mean_absolute_error, p99_absolute_error
        Of |x^ - x|, in the unit of the input.
    rounding_utilization, scale_utilization, output_utilization
        Largest share of its own term that an element used; at most 1.
    bound_utilization
        Largest share of the whole bound of a value.
    rms_utilization
        Largest share of the bound of a head, root mean square; None where there is none.
    violations
        Breaches of a rule, counted by element or, where a rule is about scales, by head.
    findings
        For each rule that was broken: the rule, the first place and how often.
    """

    elements: int
    nonfinite_heads: int
    max_normalized_error: float
    mean_absolute_error: float
    p99_absolute_error: float
    rounding_utilization: float
    scale_utilization: float
    output_utilization: float
    bound_utilization: float
    rms_utilization: float | None
    violations: int
    findings: tuple[str, ...]

    def accept(self) -> BoundReport:
        """This report, if nothing was found.

        Raises
        ------
        BoundViolation
            Says which rules were broken, where first, and how often.
        """
        if self.violations:
            raise BoundViolation("; ".join(self.findings))
        return self


@dataclass(frozen=True)
class Terms:
    """The terms of a bound, each with its limit."""

    rounding: Term
    scaling: Term
    output: Term
    bound: Term
    rms: Term | None = None


def summarize(
    *, error: Tensor, scale: Tensor, live: Tensor, terms: Terms, broken: Mapping[str, Tensor]
) -> BoundReport:
    """The report.

    Parameters
    ----------
    error
        `[tokens, heads, head_dim]` float64: |x^ - x|.
    scale
        As wide or one value wide: s.
    live
        `[tokens, heads, 1]` bool: heads that are finite.
    broken
        For each rule, where it is broken.
    """
    kept = error[live.expand_as(error)]
    return BoundReport(
        elements=error.numel(),
        nonfinite_heads=int((~live).sum()),
        max_normalized_error=_largest((error / scale).where(error != 0, 0.0), live),
        mean_absolute_error=float(kept.mean()) if kept.numel() else 0.0,
        p99_absolute_error=_percentile(kept, 0.99),
        rounding_utilization=_utilization(*terms.rounding, live),
        scale_utilization=_utilization(*terms.scaling, live),
        output_utilization=_utilization(*terms.output, live),
        bound_utilization=_utilization(*terms.bound, live),
        rms_utilization=None if terms.rms is None else _utilization(*terms.rms, live),
        violations=sum(int(mask.sum()) for mask in broken.values()),
        findings=tuple(_finding(rule, mask) for rule, mask in broken.items() if mask.any()),
    )


def over(got: Tensor, limit: Tensor) -> Tensor:
    """Where a limit is passed, or a NaN stands in place of a number."""
    return ~(got <= limit)


def _utilization(got: Tensor, limit: Tensor, mask: Tensor) -> float:
    """Largest got / limit; nothing used of a limit of zero is 0."""
    return _largest((got / limit).where(got != 0, 0.0), mask)


def _largest(values: Tensor, mask: Tensor) -> float:
    return float(values.where(mask, 0.0).amax()) if values.numel() else 0.0


def _percentile(values: Tensor, share: float) -> float:
    if not values.numel():
        return 0.0
    return float(values.kthvalue(max(1, round(share * values.numel()))).values)


def _finding(rule: str, mask: Tensor) -> str:
    token, head, element = mask.nonzero()[0].tolist()
    place = f"token {token}, head {head}" + (f", element {element}" if mask.shape[-1] > 1 else "")
    return f"{rule}: first at {place}, {int(mask.sum())} in all"
