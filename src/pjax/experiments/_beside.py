"""Tables of studies: methods beside Adam, all of which see the same batches."""

from collections.abc import Sequence

import numpy as np

from pjax.experiments import exchanges, methods, paper
from pjax.experiments._words import MISSING
from pjax.experiments.results import Run

FRACTION = 0.97
"""Of Adam's accuracy at the end: how soon it is reached is reported."""
TITLES = {
    "learning": "Learning",
    "quantised": "Weights and activations of few levels",
    "ablation": "What helps, and what does not",
    "precision": "Precision of the arithmetic",
    "exchanges": "Fewer exchanges",
}
TIMED = ("learning",)
"""Studies whose times are those of one run alone."""
EXPLANATION = (
    "Adam is backpropagation with Adam (1e-3). Test: of the parameters with the best validation accuracy. "
    f"To {FRACTION:.0%}: until the mean test accuracy is that much of Adam's at the end; – where it never is."
)
SENT = (
    "Exchanges: how often groups average their parameters, or gradients, on a batch. MB: what each device "
    "has sent, with a device for each group and sums around a ring."
)
"""Of the study of exchanges."""
_BEST = ("dr", "ap", "cp")


def reference(run: Run, runs: Sequence[Run]) -> Run | None:
    """The run of Adam to compare a run with: on the same network, if possible in the same precision.

    Its groups, if it has any, exchange on every batch, so that it is Adam on the whole batch.
    """
    same = [
        r
        for r in runs
        if r.architecture == run.architecture
        and r.method.partition(":")[0] == "adam"
        and "sync_every" not in r.method
    ]
    precision = methods.split(run.method)[1].get("precision")
    alike = [r for r in same if methods.split(r.method)[1].get("precision") == precision]
    return next(iter(alike or same), None)


def reached(run: Run, accuracy: float) -> tuple[int, float] | None:
    """Batches and seconds until the mean test accuracy over seeds is a given one; None if it never is."""
    for check in run.checks:
        if np.nanmean(check.test) >= accuracy:
            return check.step // int(run.config["steps_per_batch"]), check.seconds
    return None


def batches(run: Run) -> int:
    """How many a run of a study sees."""
    return int(run.config["max_steps"]) // int(run.config["steps_per_batch"])


def header(study: str) -> list[str]:
    """The titles of the columns, after architecture and method."""
    columns = ["Test (%)", "minus Adam", "Train (%)", f"Batches to {FRACTION:.0%}"]
    if study in TIMED:
        columns += [f"Seconds to {FRACTION:.0%}", "ms/batch"]
    if study == "exchanges":
        columns += ["Exchanges/batch", "MB sent", f"MB to {FRACTION:.0%}"]
    return [*columns, "Paper's best projection (%)"] if study == "learning" else columns


def cells(run: Run, runs: Sequence[Run], study: str) -> list[str]:
    """The cells of a run, after architecture and method."""
    adam = reference(run, runs)
    final = None if adam is None or not adam.checks else float(np.nanmean(adam.checks[-1].test))
    test, train = run.test, run.train
    apart = adam is not None and adam is not run and adam.test is not None and test is not None
    found = [
        MISSING if test is None else f"{test.mean:.2f} ± {test.std:.2f}",
        f"{test.mean - adam.test.mean:+.2f}".replace("-", "−") if apart else "",  # type: ignore[union-attr]  # noqa: RUF001
        MISSING if train is None else f"{train.mean:.1f}",
    ]
    when = None if final is None else reached(run, FRACTION * final)
    found.append(MISSING if when is None else f"{when[0]:,}")
    if study in TIMED:
        per_batch = (
            None if run.ms_per_step is None else run.ms_per_step.mean * int(run.config["steps_per_batch"])
        )
        found.append(MISSING if when is None else f"{when[1]:.3g}")
        found.append(MISSING if per_batch is None else f"{per_batch:.3g}")
    if study == "exchanges":
        sent = exchanges.sent(run) / 1e6
        found += [str(exchanges.of(run)), _megabytes(sent * batches(run))]
        found.append(MISSING if when is None else _megabytes(sent * when[0]))
    if study == "learning":
        found.append(_papers_best(run) if run.method == "ep" else "")
    return found


def _megabytes(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _papers_best(run: Run) -> str:
    found = [paper.lookup(run.data, run.model, run.architecture, name) for name in _BEST]
    best = max((row.test.mean for row in found if row is not None), default=None)
    return MISSING if best is None else f"{best:.1f}"
