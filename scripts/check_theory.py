"""Which rule do a run's answers follow? The contrastive factor over the lead, and its null.

    python scripts/check_theory.py DIR

Fits log G = a + b (rho - eps) over all visits of held-out questions (DIR/visits.jsonl). Majority
voting has b = 0 and the softened frequency a = 0, but samples are few and the lead is measured on
both visits. So the same fit is made to drawn groups of as many answers, that start from the run's
own counts and follow each rule exactly, with an eta that is the same for all questions or differs
among them.
"""

import sys
from pathlib import Path

import numpy as np

from jaxevolve.runtime.metrics import read_jsonl
from jaxevolve.theory import Contrast, Rule, contrast, contrast_eta, reward, tilted
from jaxevolve.visits import FILE, HELD_OUT, successive, tallies

DRAWS = 40
SPREADS = (0.0, 0.5, 1.0)  # standard deviation of log eta among questions
SMOOTHING = 0.2  # of a count, for each answer that was given


def fit(seen: Contrast) -> tuple[np.ndarray, np.ndarray]:
    """Least squares of log G = a + b gap: (a, b) and their standard errors."""
    known = ~np.isnan(seen.gap)
    gap, log = seen.gap[known], seen.log_factor[known]
    columns = np.stack([np.ones_like(gap), gap], 1)
    found = np.linalg.lstsq(columns, log, rcond=None)[0]
    noise = ((log - columns @ found) ** 2).sum() / (len(log) - 2)
    return found, np.sqrt(np.diag(noise * np.linalg.inv(columns.T @ columns)))


def simulate(
    counts: np.ndarray, rule: Rule, eta: float, spread: float, numbers: np.random.Generator
) -> Contrast:
    """Two visits of as many samples, of which the second follows a rule.

    Args:
        counts: i[Q, A] of the first visits of a run, from which both are drawn.
        rule: that is followed.
        eta: the median over questions.
        spread: standard deviation of log eta.
        numbers: randomness.
    """
    smooth = counts + SMOOTHING * (counts > 0)
    p = smooth / smooth.sum(-1, keepdims=True)
    etas = eta * np.exp(spread * numbers.normal(size=len(p)))
    after = np.stack([tilted(q, reward(q, rule), e) for q, e in zip(p, etas)])
    draw = lambda shares: np.stack(
        [numbers.multinomial(n, q) for n, q in zip(counts.sum(-1), shares)]
    )
    return contrast(draw(p), draw(after))


def main(workdir: Path) -> None:
    """Prints the fit to a run and the fits to groups drawn by both rules."""
    visits = [line for line in read_jsonl(workdir / FILE) if line["of"] == HELD_OUT]
    before, after = tallies(successive(visits))
    answered = before.any(-1)
    seen = contrast(before[answered], after[answered])
    (a, b), (of_a, of_b) = fit(seen)
    print(f"{'':<36}{'a':>8}{'+-':>6}{'b':>8}{'+-':>6}")
    print(f"{'measured':<36}{a:>8.2f}{of_a:>6.2f}{b:>8.2f}{of_b:>6.2f}")
    numbers = np.random.default_rng(0)
    for rule in ("majority", "softened"):
        for spread in SPREADS:
            # Few samples draw eta towards zero: it is set so that it comes out as measured.
            eta = wanted = contrast_eta(seen, rule)
            for _ in range(4):
                made = simulate(before[answered], rule, eta, spread, numbers)
                eta *= wanted / contrast_eta(made, rule)
            made = [simulate(before[answered], rule, eta, spread, numbers) for _ in range(DRAWS)]
            fits = np.stack([fit(one)[0] for one in made])
            (a, b), (of_a, of_b) = fits.mean(0), fits.std(0)
            name = f"{rule}, spread of log eta {spread:g}"
            print(f"{name:<36}{a:>8.2f}{of_a:>6.2f}{b:>8.2f}{of_b:>6.2f}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} DIR, the folder of a run")
    main(Path(sys.argv[1]))
