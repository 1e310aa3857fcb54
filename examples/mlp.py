"""The paper's multilayer perceptron on handwritten digits, by three projection methods and by gradients.

A hidden layer of 128 relus, cross-entropy, batches of 256; the 8 x 8 digits come with the package. The
paper's Douglas-Rachford makes 50 steps on each batch and needs no learning rate. `ExtrapolatedProjections`
makes one.

Gradients: Adam by backpropagation sees the same batches from the same weights.

    python examples/mlp.py
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _gallery import Method, by_gradients, by_projections, digits, one_panel, options, picture, train

from pjax import nn, optim
from pjax.experiments.models import MLP
from pjax.experiments.plots import look
from pjax.tools.plotting import Label, accuracy_scale, decades, end_labels, note, styled


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    chosen = options(__doc__, arguments)
    count, size = (6, 32) if chosen.quick else (300, 256)
    batches, test_x, test_y = digits(chosen.quick)
    model = MLP(64, [128], 10)

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return nn.cross_entropy(model.apply(params, x), y)

    @jax.jit
    def accuracy(params: Any) -> jax.Array:
        return 100 * jnp.mean(model.apply(params, test_x).argmax(-1) == test_y)

    methods: dict[str, Method] = {
        "ep": by_projections(optim.ExtrapolatedProjections(learning_rate=1e-3), loss),
        "dr": by_projections(optim.DouglasRachford(), loss),
        "ap": by_projections(optim.AlternatingProjections(), loss),
        "adam": by_gradients(1e-3, loss),
    }
    start = model.init(jax.random.key(0))
    curves = {}
    for name, method in methods.items():
        _, curves[name] = train(method, start, batches(count, size), max(count // 60, 1), accuracy)
        print(f"{NAMES[name]}: {curves[name][-1, 1]:.1f} % of the test digits after {count} batches")
    picture(draw(curves), chosen.pictures, "mlp")
    return {name: float(curve[-1, 1]) for name, curve in curves.items()}


NAMES = {
    "ep": "extrapolated",
    "dr": "Douglas-Rachford",
    "ap": "alternating",
    "adam": "Adam, gradients",
}


@styled
def draw(curves: dict[str, np.ndarray]) -> Any:
    """Test accuracy over batches."""
    about = "8 x 8 pixels, 128 hidden relus, batches of 256, the same for all methods"
    figure, axis = one_panel("Handwritten digits by projections", about)
    accuracy_scale(axis, np.concatenate([curve[1:, 1] for curve in curves.values()]))
    last = max(curve[-1, 0] for curve in curves.values())
    axis.set(xscale="log", xlim=(min(curve[1, 0] for curve in curves.values()), last))
    decades(axis.xaxis, 1, last)
    for name, curve in curves.items():
        axis.plot(*curve[1:].T, **look(name).line)
    axis.set(xlabel="batches", ylabel="test accuracy, %")
    ends = {name: float(curve[-1, 1]) for name, curve in curves.items()}
    end_labels(
        axis, [Label(end, NAMES[name], look(name).colour, look(name).strong) for name, end in ends.items()]
    )
    note(figure, ["Douglas-Rachford and alternating projections: 50 steps on each batch, as in the paper"])
    return figure


if __name__ == "__main__":
    main()
