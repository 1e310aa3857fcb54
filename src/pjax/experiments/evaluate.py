"""What a trained network makes of data: its accuracies, and its predictions."""

import io
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pjax.errors import InputError
from pjax.experiments import config as configuration
from pjax.experiments.loop import EVALUATED, Loop
from pjax.experiments.train import load_params
from pjax.tools.files import write_atomically


def evaluate(
    folder: str | Path, data: str | Path | None = None, *, seed: int | None = None
) -> dict[str, float]:
    """Accuracies, in percent, of the parameters of a run with the best validation accuracy.

    Args:
        folder: of the run.
        data: a file ``.npz`` with inputs ``x``, as the run's data set stores them, and labels ``y``; by
            default the three parts of that data set.
        seed: which one of the run's seeds; by default the first.

    Returns:
        The accuracies, by the name of the part, or of the file.
    """
    params, loop = load_params(folder, seed), _loop(folder)
    if data is None:
        names, own = {"train": "train", "validation": "val", "test": "test"}, loop.dataset
        parts = {name: (getattr(own, f"x_{key}"), getattr(own, f"y_{key}")) for name, key in names.items()}
    else:
        arrays = _read(Path(data))
        if "y" not in arrays:
            raise InputError(f"{data}: labels 'y' are missing, it holds {', '.join(arrays)}")
        x = _inputs(loop, arrays["x"], data)
        parts = {Path(data).name: (x, _labels(loop, x, arrays["y"], data))}
    return {
        name: round(100 * float(np.mean(_scores(loop, params, x).argmax(-1) == y)), 6)
        for name, (x, y) in parts.items()
    }


def predict(folder: str | Path, data: str | Path | Any, *, seed: int | None = None) -> np.ndarray:
    """A score for each class, of the parameters of a run with the best validation accuracy.

    Args:
        folder: of the run.
        data: inputs as the run's data set stores them: an array, a file ``.npy``, or ``.npz`` with ``x``.
        seed: which one of the run's seeds; by default the first.

    Returns:
        An array of shape (inputs, classes), or (inputs, characters, classes); the largest is the prediction.
    """
    params, loop = load_params(folder, seed), _loop(folder)
    file = isinstance(data, str | Path)
    x = _read(Path(data))["x"] if file else np.asarray(data)
    return _scores(loop, params, _inputs(loop, x, data if file else "data"))


def write_predictions(scores: np.ndarray, path: str | Path) -> Path:
    """Write predictions: as ``.npy`` the classes, as ``.csv`` a row for each input with class and scores."""
    path = Path(path)
    check_out(path)
    classes = scores.argmax(-1)
    buffer = io.BytesIO()
    if path.suffix == ".npy":
        np.save(buffer, classes, allow_pickle=False)
    else:
        if scores.ndim != 2:
            raise InputError(f"{path}: predictions of texts have no table; write them as .npy")
        head = ",".join(["class", *(f"score_{i}" for i in range(scores.shape[1]))])
        rows = (",".join([str(c), *map(str, row)]) for c, row in zip(classes, scores, strict=True))
        buffer.write(("\n".join([head, *rows]) + "\n").encode())
    return write_atomically(path, buffer.getvalue())


def check_out(path: Path) -> None:
    """Refuse a file of predictions that has no known form."""
    if path.suffix not in (".npy", ".csv"):
        raise InputError(f"predictions are written as .npy or .csv, got {str(path)!r}")


def _loop(folder: str | Path) -> Loop:
    return Loop(configuration.read(Path(folder) / "config.json"))


def _scores(loop: Loop, params: dict[str, Any], x: np.ndarray) -> np.ndarray:
    one = jax.jit(lambda params, x: loop.method.scores(loop.model, params, loop.see(x)))
    return np.concatenate(
        [np.asarray(one(params, x[i : i + EVALUATED])) for i in range(0, len(x), EVALUATED)]
    )


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file; nothing in it is executed."""
    try:
        with path.open("rb") as file:
            found: Any = np.load(file, allow_pickle=False)
            arrays = {"x": found} if isinstance(found, np.ndarray) else {name: found[name] for name in found}
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except Exception as error:  # whatever zip and NumPy say of a file that is something else
        raise InputError(f"{path}: expected .npy, or .npz with an array 'x' ({error})") from None
    if "x" not in arrays:
        raise InputError(f"{path}: inputs 'x' are missing, it holds {', '.join(arrays) or 'nothing'}")
    return arrays


def _inputs(loop: Loop, x: np.ndarray, where: Any) -> np.ndarray:
    """Inputs in the shape of the data set's; rows of as many numbers are taken for it."""
    shape, text = loop.dataset.input_shape, loop.dataset.kind == "text"
    if x.ndim < 1 or not len(x) or x[0].size != np.prod(shape, dtype=int):
        wanted = ("n", *shape)
        raise InputError(
            f"{where}: {loop.dataset.name} has inputs of shape ({', '.join(map(str, wanted))}), got {x.shape}"
        )
    if x.dtype.kind not in "biuf" or not np.isfinite(x).all():
        raise InputError(f"{where}: inputs must be finite numbers, got {x.dtype}")
    if text and (x.dtype.kind == "f" or x.min() < 0 or x.max() >= loop.dataset.classes):
        raise InputError(f"{where}: characters must be codes from 0 to {loop.dataset.classes - 1}")
    return x.reshape(len(x), *shape).astype(np.int32 if text else np.float32)


def _labels(loop: Loop, x: np.ndarray, y: np.ndarray, where: Any) -> np.ndarray:
    shape = (len(x), *loop.dataset.y_test.shape[1:])
    if y.shape != shape or y.dtype.kind not in "iu":
        raise InputError(
            f"{where}: labels 'y' must be whole numbers of shape {shape}, got {y.dtype}{y.shape}"
        )
    if y.min() < 0 or y.max() >= loop.dataset.classes:
        raise InputError(
            f"{where}: labels must be from 0 to {loop.dataset.classes - 1}, got {y.min()} to {y.max()}"
        )
    return y
