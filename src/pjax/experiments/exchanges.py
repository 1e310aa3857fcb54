"""What the groups of a run send each other: a sum over all of them, of every parameter, for each exchange.

The number of exchanges is that of the method. Sums go around a ring, in which every device sends
2 (n - 1) / n times its message. A test holds this against compiled programs.
"""

from fractions import Fraction

from pjax.experiments import config as configuration
from pjax.experiments import methods, structure
from pjax.experiments.config import Config
from pjax.experiments.results import Run

BYTES = 4
"""Of a parameter."""


def per_batch(config: Config) -> Fraction:
    """How often groups exchange their parameters, or what is to be done to them, on one batch.

    >>> per_batch(Config(method="ap:steps=10:groups=8:sync_every=5")), per_batch(Config(method="adam"))
    (Fraction(2, 1), Fraction(1, 1))
    >>> per_batch(Config(method="adam:groups=8:sync_every=100"))
    Fraction(1, 100)
    """
    return Fraction(config.steps_per_batch, methods.split(config.method)[1].get("sync_every", 1))


def message(config: Config) -> int:
    """Bytes that a device gives to one exchange.

    >>> message(Config(data="digits", widths=(16,), method="adam")) == 4 * (64 * 16 + 16 + 16 * 10)
    True
    """
    return BYTES * structure.parameters(config)


def sent(run: Run) -> float:
    """Bytes that each device sends while it sees one batch, where every group has a device of its own."""
    config = _config(run)
    groups = methods.split(config.method)[1].get("groups", 1)
    return 2 * (groups - 1) / groups * message(config) * float(per_batch(config))


def of(run: Run) -> Fraction:
    """How often the groups of a run exchange on one batch."""
    return per_batch(_config(run))


def _config(run: Run) -> Config:
    return configuration.of_run(run.config, run.folder / "config.json")
