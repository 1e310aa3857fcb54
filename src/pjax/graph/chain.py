"""Functions that are chains: something first, equal layers one after the other, something last."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pjax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Chain:
    """A function of parameters and a batch that is a chain of equal layers between two ends.

    Its parameters are a dictionary; those of all layers are its entry ``layers``, every array with the layers
    along its first axis. All others, the *rest*, are those of the ends, and what layers share.

    Args:
        first: from the rest and a batch to the wires that the first layer reads: any pytree of arrays.
        layer: from the rest, the parameters of one layer and its wires to those of the next, of the same
            shapes and types.
        last: from the rest, the wires that the last layer returns and a batch to losses.

    >>> import jax.numpy as jnp
    >>> chain = Chain(
    ...     first=lambda rest, batch: batch[0],
    ...     layer=lambda rest, own, x: x + jnp.tanh(x @ own),
    ...     last=lambda rest, x, batch: ((x @ rest["v"] - batch[1]) ** 2).mean(),
    ... )
    >>> params = {"layers": jnp.zeros((8, 2, 2)), "v": jnp.ones((2, 1))}
    >>> float(chain(params, (jnp.ones((4, 2)), jnp.ones((4, 1)))))
    1.0
    """

    first: Callable[[Any, Any], Any]
    layer: Callable[[Any, Any, Any], Any]
    last: Callable[[Any, Any, Any], Any]

    def __call__(self, params: Any, batch: Any) -> Any:
        """The function as a whole, for any other optimiser."""
        rest, layers = self.split(params)
        wires = self.first(rest, batch)
        wires, _ = jax.lax.scan(lambda x, one: (self.layer(rest, one, x), None), wires, layers)
        return self.last(rest, wires, batch)

    def split(self, params: Any) -> tuple[Any, Any]:
        """The rest, and the stacks of the layers' parameters."""
        if not isinstance(params, dict) or not jax.tree.leaves(params.get("layers")):
            raise InputError(
                "the parameters of a chain are a dictionary in which 'layers' are those of all layers,"
                f" stacked; got {type(params).__name__}"
                + (f" of {sorted(params)}" if isinstance(params, dict) else "")
            )
        return {k: v for k, v in params.items() if k != "layers"}, params["layers"]

    def join(self, rest: Any, layers: Any) -> Any:
        """The opposite of `split`, also for what is asked of parameters."""
        return {**rest, "layers": layers}

    def number(self, layers: Any) -> int:
        """Of layers."""
        sizes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(layers)}
        if len(sizes) != 1 or () in sizes:
            raise InputError(
                f"the arrays of 'layers' must agree in the length of their first axis; got {sorted(sizes)}"
            )
        return sizes.pop()[0]

    @staticmethod
    def check_layer(given: Any, found: Any) -> None:
        """Refuse a layer that returns something else than the next one takes."""
        shapes = [jax.tree.map(lambda x: (x.shape, str(x.dtype)), tree) for tree in (given, found)]
        if shapes[0] != shapes[1]:
            raise InputError(
                f"a layer of a chain must return what the next one takes: it got {shapes[0]}, and returned"
                f" {shapes[1]}. What differs belongs to first or last"
            )
