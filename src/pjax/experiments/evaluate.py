"""What a trained network makes of data: its accuracies, and its predictions."""

import csv
import io
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pjax.errors import DataError, InputError
from pjax.experiments.data import Dataset
from pjax.experiments.loop import EVALUATED, Loop, explained, right
from pjax.experiments.own_data import Form, read_more
from pjax.experiments.train import best, saved_form
from pjax.tools.files import write_atomically


def evaluate(
    folder: str | Path, data: Any = None, *, seed: int | None = None, model: Any = None
) -> dict[str, float]:
    """Accuracies, in percent, of the parameters of a run with the best validation accuracy.

    Where numbers are to be predicted, the variance that is explained, R², in percent, and the root of the
    mean squared error (``rmse``), in the units of the data.

    Args:
        folder: of the run.
        data: a file ``.npz`` with inputs ``x``, as the run's data set stores them, and labels ``y``, or
            ``.csv`` if the run's data are; or ``(x, y)``; by default the three parts of the run's data.
        seed: which one of the run's seeds; by default the first.
        model: that of the run, if it was given to `train`.

    Returns:
        The accuracies, by the name of the part, or of the file.
    """
    loop, params = best(Path(folder), seed, model, rows=data is None)
    if data is None:
        names, own = {"train": "train", "validation": "val", "test": "test"}, loop.dataset
        parts = {name: (getattr(own, f"x_{key}"), getattr(own, f"y_{key}")) for name, key in names.items()}
    else:
        name = Path(data).name if isinstance(data, str | Path) else "data"
        parts = {name: read_more(_form(loop.dataset), data, targets=True)}
    found = {}
    for name, (x, y) in parts.items():
        outputs = _outputs(loop, params, x)
        if loop.dataset.classes:
            if y.shape != outputs.shape[:-1]:
                raise DataError(
                    f"{name}: y must hold a class for each prediction, of shape {outputs.shape[:-1]}; got "
                    f"{y.shape}"
                )
            found[name] = round(100 * float(np.mean(right(outputs, y))), 6)
            continue
        errors = np.sum((outputs.astype(np.float64) - y) ** 2, axis=0)
        found[name] = round(float(explained(errors.sum(), y)), 6)
        scale = np.array(loop.dataset.form.target_scale)
        found[f"{name} rmse"] = float(np.sqrt(np.mean(errors / len(y) * scale**2)))
    return found


def predict(
    folder: str | Path, data: str | Path | Any, *, seed: int | None = None, model: Any = None
) -> np.ndarray:
    """A score for each class, of the parameters of a run with the best validation accuracy.

    Args:
        folder: of the run.
        data: inputs as the run's data set stores them: an array, a file ``.npy``, ``.npz`` with ``x``, or
            ``.csv`` if the run's data are.
        seed: which one of the run's seeds; by default the first.
        model: that of the run, if it was given to `train`.

    Returns:
        An array of shape (inputs, classes), or (inputs, characters, classes); the largest is the prediction.
        Where numbers are to be predicted, these, of shape (inputs, numbers).
    """
    loop, params = best(Path(folder), seed, model)
    x, _ = read_more(_form(loop.dataset), data, targets=False)
    outputs = _outputs(loop, params, x)
    return outputs if loop.dataset.classes else loop.dataset.form.numbers(outputs)


def write_predictions(folder: str | Path, data: Any, path: str | Path, *, seed: int | None = None) -> Path:
    """Write what `predict` gives to a file.

    As ``.npy`` the classes, or numbers; as ``.csv`` a row for each input, with class and scores, or numbers.
    """
    path = Path(path)
    if path.suffix not in (".npy", ".csv"):
        raise InputError(f"predictions are written as .npy or .csv, got {str(path)!r}")
    outputs, form = predict(folder, data, seed=seed), saved_form(Path(folder)) or Form()
    if form.task == "regression":
        name, columns = form.target or "predicted", outputs.shape[1]
        names = [name] if columns == 1 else [f"{name}_{i}" for i in range(columns)]
        predicted, rows = outputs, outputs.tolist()
    else:
        predicted = outputs.argmax(-1)
        predicted = np.array(form.labels)[predicted] if form.labels else predicted
        names = ["class", *(f"score_{label}" for label in form.labels or range(outputs.shape[-1]))]
        rows = [[one, *row] for one, row in zip(predicted, outputs, strict=True)]
    if path.suffix == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, predicted, allow_pickle=False)
        return write_atomically(path, buffer.getvalue())
    if outputs.ndim != 2:
        raise InputError(f"{path}: predictions of texts have no table; write them as .npy")
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([names, *rows])
    return write_atomically(path, table.getvalue().encode())


def _outputs(loop: Loop, params: Any, x: np.ndarray) -> np.ndarray:
    one = jax.jit(lambda params, x: loop.method.scores(loop.model, params, loop.see(x)))
    return np.concatenate(
        [np.asarray(one(params, x[i : i + EVALUATED])) for i in range(0, len(x), EVALUATED)]
    )


def _form(dataset: Dataset) -> Form:
    """How more data are read: as those of the run are stored."""
    codes: dict[str, Any] = {"dtype": "int32", "codes": dataset.classes} if dataset.kind == "text" else {}
    return dataset.form or Form(shape=dataset.input_shape, outputs=dataset.classes, **codes)
