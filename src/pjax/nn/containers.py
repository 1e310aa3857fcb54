"""Modules made of a sequence of modules."""

from collections.abc import Callable, Iterator
from typing import Any

from pjax.containers import numpy as pnp
from pjax.containers.computation import Operand
from pjax.errors import InputError
from pjax.nn._check import shape_of
from pjax.nn._module import Module


class Sequential(Module):
    r"""One module after the other, :math:`y = f_n(\dots f_1(x))`.

    Args:
        layers: modules, or functions without parameters.

    Parameters: those of the modules, as ``layers.0.…`` and so on.

    >>> import jax, numpy as np
    >>> from pjax import nn
    >>> model = Sequential(nn.Linear(4, 3), nn.ReLU(3), nn.Linear(3, 2))
    >>> params = model.init(jax.random.key(0))
    >>> list(params)
    ['layers.0.weight', 'layers.1.bias', 'layers.2.weight']
    >>> model.apply(params, np.ones((5, 4), np.float32)).shape
    (5, 2)
    """

    def __init__(self, *layers: Callable[..., Any]) -> None:
        for place, layer in enumerate(layers):
            if not callable(layer):
                name = type(self).__name__
                hint = f"; write {name}(*layers)" if isinstance(layer, list | tuple) else ""
                raise InputError(
                    f"{name}: expected modules or functions, got {type(layer).__name__} as layer "
                    f"{place}{hint}."
                )
        self.layers = layers

    def __call__(self, x: Operand) -> Any:
        """The output of the last module."""
        for layer in self.layers:
            x = layer(x)
        return x

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, place: int) -> Any:
        return self.layers[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)


class Concat(Sequential):
    r"""One module after the other, and all their outputs side by side along the last axis.

    .. math:: y = (h_1, \dots, h_n), \quad h_i = f_i(h_{i-1}), \quad h_0 = x

    What comes next reads every module directly. This is the skip connection for projections: it shortens the
    path from early modules to the output, and adds no constraint.

    Args:
        layers: modules, or functions without parameters.

    Parameters: those of the modules, as ``layers.0.…`` and so on.

    >>> import jax, numpy as np
    >>> from pjax import nn
    >>> first = nn.Sequential(nn.Linear(4, 3), nn.ReLU(3))
    >>> second = nn.Sequential(nn.Linear(3, 2), nn.ReLU(2))
    >>> model = Concat(first, second)
    >>> model.apply(model.init(jax.random.key(0)), np.ones((7, 4), np.float32)).shape
    (7, 5)
    """

    def __call__(self, x: Operand) -> Any:
        """The outputs of all modules, concatenated."""
        outputs = []
        for layer in self.layers:
            x = layer(x)
            outputs.append(x)
        shapes = [shape_of(self._place(), y, "arrays from all layers") for y in outputs]
        if not shapes or not all(shape and shape[:-1] == shapes[0][:-1] for shape in shapes):
            raise InputError(
                f"{self._place()}: expected at least one layer, and outputs that differ in their last axis "
                f"only, got the shapes {', '.join(map(str, shapes)) or 'of no layers'}."
            )
        return pnp.concatenate(outputs, axis=-1)
