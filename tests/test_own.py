"""Your own data, model and loop: what is read, what is refused, and that it trains."""

import csv
import dataclasses
import itertools
import json
import random
import subprocess
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import pjax
from pjax import nn
from pjax.experiments import data as datasets
from pjax.experiments import loggers, own_data, own_model
from pjax.experiments.config import Config
from pjax.experiments.evaluate import evaluate, predict
from pjax.experiments.loop import Loop
from pjax.experiments.results import read_run
from pjax.experiments.train import StopTraining, load_params, saved_form, train
from pjax_command import app

pytestmark = pytest.mark.usefixtures("quick_compilation")


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def write(path: Path, rows: list[list[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def flowers(path: Path, count: int = 300) -> Path:
    """A table of two columns of numbers, one of texts, a price, and a kind that follows from them."""
    chance = random.Random(0)
    rows: list[list[object]] = [["width", "length", "colour", "price", "kind"]]
    for _ in range(count):
        kind, width, length = chance.choice([("iris", 1, 5), ("rose", 3, 3), ("tulip", 5, 4)])
        a, b = chance.gauss(width, 0.5), chance.gauss(length, 0.5)
        colour = chance.choice(["red", "white"])
        rows.append([round(a, 3), round(b, 3), colour, round(1000 + 20 * a + 5 * (colour == "red"), 2), kind])
    return write(path, rows)


class TestTables:
    def test_numbers_categories_and_classes_by_name(self, tmp_path: Path) -> None:
        found = own_data.load(flowers(tmp_path / "flowers.csv"), target="kind", ignore=["price"])
        assert found.form.columns == (("width", None), ("length", None), ("colour", ("red", "white")))
        assert found.form.labels == ("iris", "rose", "tulip")
        assert [len(found.x_train), len(found.x_val), len(found.x_test)] == [210, 30, 60]
        np.testing.assert_allclose(found.x_train[:, :2].mean(0), 0, atol=1e-5)
        np.testing.assert_allclose(found.x_train[:, :2].std(0), 1, atol=1e-5)
        assert set(np.unique(found.x_train[:, 2:])) == {0.0, 1.0}

    def test_every_row_is_in_one_part_and_keeps_its_target(self, tmp_path: Path) -> None:
        rows = [["a", "b"], *([i, 3 * i + 0.5] for i in range(50))]
        found = own_data.load(write(tmp_path / "t.csv", rows), target="b", validation=0.2, test=0.3)
        assert [len(found.x_train), len(found.x_val), len(found.x_test)] == [25, 10, 15]
        form, seen = found.form, []
        for part in ("train", "val", "test"):
            a = getattr(found, f"x_{part}")[:, 0] * form.scale[0] + form.shift[0]
            np.testing.assert_allclose(
                form.numbers(getattr(found, f"y_{part}"))[:, 0], 3 * a + 0.5, rtol=1e-4
            )
            seen += a.round().tolist()
        assert sorted(seen) == list(range(50))

    @pytest.mark.parametrize(
        ("values", "task"),
        [
            (["yes", "no"], "classes"),
            ([0, 1, 2], "classes"),
            ([7, 9], "classes"),
            (list(range(30)), "regression"),
            ([0.5, 1, 2], "regression"),
        ],
    )
    def test_what_the_target_looks_like(self, tmp_path: Path, values: list, task: str) -> None:
        rows = [["x", "y"], *([i, values[i % len(values)]] for i in range(60))]
        found = own_data.load(write(tmp_path / "t.csv", rows), target="y")
        assert found.form.task == task
        assert bool(found.classes) == (task == "classes")
        if values == [7, 9]:
            assert found.form.labels == ("7", "9")

    def test_labels_of_more_rows_are_texts_as_those_of_the_run(self, tmp_path: Path) -> None:
        """Also where a smaller file has only such as look like numbers."""
        rows = [["x", "y"], *([i, ("01", "02", "b", "c")[i % 4]] for i in range(60))]
        form = own_data.load(write(tmp_path / "t.csv", rows), target="y").form
        more = write(tmp_path / "more.csv", [["x", "y"], [1, "02"], [2, "01"]])
        _, y = own_data.read_more(form, more, targets=True)
        assert y.tolist() == [1, 0]

    @pytest.mark.parametrize("labels", [("+1", "-1"), ("01", "02"), ("1.0", "2.0")])
    def test_labels_that_are_numbers_are_read_again_as_such(self, tmp_path: Path, labels: list) -> None:
        rows = [["x", "y"], *([i, labels[i % 2]] for i in range(60))]
        table = write(tmp_path / "t.csv", rows)
        found = own_data.load(table, target="y", task="classes")
        _, y = own_data.read_more(found.form, table, targets=True)
        expected = np.concatenate([found.y_train, found.y_val, found.y_test])
        np.testing.assert_array_equal(np.sort(y), np.sort(expected))

    def test_names_with_digits_are_no_numbers(self, tmp_path: Path) -> None:
        rows = [["x", "y"], *([("1_2", "12")[i % 2], i % 2] for i in range(60))]
        found = own_data.load(write(tmp_path / "t.csv", rows), target="y")
        assert found.form.columns == (("x", ("12", "1_2")),)

    def test_quotes_tabs_and_spaces(self, tmp_path: Path) -> None:
        rows = "".join(f'{i} \t"a\nb{i % 2}"\tz{i % 2}\n' for i in range(20))
        (tmp_path / "t.csv").write_text("\ufeffn\t word\tkind\n" + rows)
        found = own_data.load(tmp_path / "t.csv", target="kind")
        assert found.form.columns == (("n", None), ("word", ("a\nb0", "a\nb1")))

    def test_large_numbers_keep_their_differences(self, tmp_path: Path) -> None:
        rows = [["when", "y"], *([1_700_000_000 + i, i / 7] for i in range(40))]
        found = own_data.load(write(tmp_path / "t.csv", rows), target="y")
        assert len(np.unique(found.x_train)) == len(found.x_train)

    @pytest.mark.parametrize(
        ("text", "options", "message"),
        [
            ("a,b\n1,2\n", {}, "say which column is the target; it has a, b"),
            ("a,b\n1,2\n", {"target": "bb"}, r"target must be one of a, b; got 'bb'\. Did you mean 'b'"),
            ("1,2\n3,4\n", {"target": "b"}, "first line must name the columns, got '1,2'"),
            ("a,b\n1,2\n3\n", {"target": "b"}, "line 3: 1 values, expected 2"),
            (",a,b\n0,1,2\n1,3,4\n", {"target": "b"}, r"column 1 has no name .* pandas writes its index so"),
            ("a,a\n1,2\n", {"target": "a"}, "two columns are called 'a'"),
            ("a,b\n", {"target": "b"}, "no rows below"),
            ("a,b\n1,2\nNA,3\n4,5\n", {"target": "b"}, "line 3: 'NA' in the column 'a', whose other entries"),
            ("a,b\n" + "".join(f"t{i},1\n" for i in range(200)), {"target": "b"}, "200 different texts"),
            ("a,b\n" + "1,x\n" * 20, {"target": "b"}, "one class only, 'x'"),
            ("a,b\n1,x\n2,y\n", {"target": "b", "task": "regression"}, "no row is left|needs numbers"),
            ("a,b\n1,x\n2,y\n", {"target": "b", "ignore": ["a"]}, "no column is left beside"),
            ("a,b\n1,1\n2,2\n", {"target": "b", "categorical": ["b"]}, "beside the target must be"),
            ("a,b\n1,x\n2,\n3,y\n", {"target": "b"}, "line 3: the target 'b' is empty"),
            ("a;b\n1,5;x\n2,5;y\n3;x\n", {"target": "b"}, "decimal commas"),
            ("a,b\n1,2\n", {"target": "b", "test": 1.5}, "share of the rows, between 0 and 1; got 1.5"),
            ("a,b\n1,2\n" + "z" * 200_000 + ",3\n", {"target": "b"}, "line 3: field larger .* is a quote"),
            ("a,b\n" + f"1,{'9' * 25}\n2,1\n" * 20, {"target": "b"}, "whole number of 25 digits"),
            ("a,b\n" + "1e300,1\n2,2\n" * 20, {"target": "b"}, r"x holds numbers up to 1e\+300, too large"),
            ("a,b\n" + "1,1e300\n2,2.5\n" * 20, {"target": "b"}, r"y holds numbers up to 1e\+300, too large"),
            ("a,b\n" + "1e50,1\n2,2\n" * 20, {"target": "b", "standardise": False}, r"1e\+50, too large"),
            ("a,b\n" + "1,x\n2,y\n" * 20, {"target": "b", "task": "regression"}, "texts such as 'x'"),
        ],
    )
    def test_what_is_refused(self, tmp_path: Path, text: str, options: dict, message: str) -> None:
        (tmp_path / "t.csv").write_text(text)
        with pytest.raises(pjax.PjaxError, match=message):
            own_data.load(tmp_path / "t.csv", **options)


class TestArrays:
    X = np.random.default_rng(0).normal(size=(100, 4))

    def test_images_get_their_channel(self) -> None:
        found = own_data.load((np.zeros((40, 6, 5), np.uint8), np.arange(40) % 2))
        assert found.input_shape == (6, 5, 1)
        assert found.kind == "image"
        for shape in ((2, 6, 5), (2, 30), (2, 1, 6, 5)):
            assert found.form.inputs(np.zeros(shape), "here").shape == (2, 6, 5, 1)
        with pytest.raises(pjax.PjaxError, match=r"expected inputs of shape \(n, 6, 5, 1\).*got \(2, 5, 6\)"):
            found.form.inputs(np.zeros((2, 5, 6)), "here")

    def test_a_split_that_is_there_stays(self, tmp_path: Path) -> None:
        y = np.arange(100) % 3
        arrays = {"x_train": self.X[:80], "y_train": y[:80], "x_test": self.X[80:], "y_test": y[80:]}
        np.savez(tmp_path / "mine.npz", **arrays)
        found = own_data.load(tmp_path / "mine.npz", validation=0.25)
        assert [len(found.x_train), len(found.x_val), len(found.x_test)] == [60, 20, 20]
        np.testing.assert_array_equal(found.y_test, y[80:])
        with pytest.raises(pjax.PjaxError, match="has x_test of its own"):
            own_data.load(tmp_path / "mine.npz", test=0.1)

    def test_whole_numbers_may_stay_what_they_are(self) -> None:
        found = own_data.load((np.arange(60).reshape(20, 3), np.arange(20) % 2), standardise=False)
        assert found.x_train.dtype == found.form.empty("here").x_train.dtype == np.int32
        assert sorted(found.form.inputs([[1, 2, 3]], "here")[0]) == [1, 2, 3]

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"z": X}, "expected the arrays x and y, or x_train"),
            ({"x": X}, "y is missing beside x"),
            ({"x": X, "y": np.zeros(3, int)}, "as many rows"),
            ({"x": X * np.nan, "y": np.arange(100)}, "finite numbers, row 0"),
            ({"x": X.astype(str), "y": np.arange(100)}, "expected numbers"),
            ({"x_train": X, "y_train": np.arange(100)}, "needs x_train, y_train, x_test and y_test"),
            ({"x": X, "y": np.array(["a", None] * 50)}, "y has type object, expected numbers or texts"),
            ({"x": X, "y": np.arange(100).astype("M8[D]")}, r"y has type datetime64\[D\]"),
            ({"x": X[:, :0], "y": np.arange(100)}, r"x has no columns, its shape is \(100, 0\)"),
            ({"x": X * 1e300, "y": np.arange(100)}, "too large to compute with"),
        ],
    )
    def test_what_is_refused(self, arrays: dict, message: str) -> None:
        with pytest.raises(pjax.PjaxError, match=message):
            own_data.load(arrays)

    def test_whole_numbers_that_do_not_fit_are_refused(self) -> None:
        x = np.arange(60).reshape(20, 3) + 2**40
        with pytest.raises(pjax.PjaxError, match=r"up to 1.1e\+12, too large"):
            own_data.load((x, np.arange(20) % 2), standardise=False)

    def test_numbers_of_any_width_are_kept_as_json(self) -> None:
        form = own_data.load((self.X.astype(np.longdouble), np.arange(100) % 2)).form
        json.dumps(dataclasses.asdict(form))

    def test_names_of_classes_may_be_bytes(self) -> None:
        found = own_data.load((self.X, np.array([b"iris", b"rose"])[np.arange(100) % 2]))
        assert found.form.labels == ("iris", "rose")

    def test_texts_are_the_same_data_wherever_they_lie(self) -> None:
        """Those of pandas are objects, elsewhere in each process."""
        kinds = [np.array([text.join("ab") for text in "xy" * 50], kind) for kind in (object, object, "U")]
        digests = {own_data.load((self.X, y)).form.digest for y in kinds}
        assert len(digests) == 1

    @pytest.mark.parametrize("y", [np.arange(100)[:, None] % 2, np.eye(2, dtype=int)[np.arange(100) % 2]])
    def test_classes_are_one_for_each_row(self, tmp_path: Path, y: np.ndarray) -> None:
        with pytest.raises(pjax.PjaxError, match=r"one class for each row.* take y\.ravel\(\)"):
            train(FAST, tmp_path / "refused", data=(self.X, y))
        train(FAST, tmp_path / "run", data=(self.X, np.arange(100) % 2))
        with pytest.raises(pjax.PjaxError, match=r"a class for each prediction, of shape \(100,\)"):
            evaluate(tmp_path / "run", (self.X, y))

    @pytest.mark.parametrize("content", ["objects", "nothing of NumPy"])
    def test_what_could_be_code_is_never_read(self, tmp_path: Path, content: str) -> None:
        file = tmp_path / "mine.npz"
        if content == "objects":
            np.savez(file, x=self.X, y=np.array([{}] * 100))
        else:
            file.write_text(content)
        with pytest.raises(pjax.PjaxError, match=r"objects of Python, which are never read\)$"):
            own_data.load(file)


def linen_model(outputs):
    import flax.linen

    return flax.linen.Sequential([flax.linen.Dense(8), flax.linen.tanh, flax.linen.Dense(outputs)])


def nnx_model(inputs, outputs, key):
    from flax import nnx

    return nnx.Linear(*inputs, outputs, rngs=nnx.Rngs(key))


def equinox_model(inputs, outputs, key):
    import equinox

    return equinox.nn.MLP(*inputs, outputs, 8, depth=1, key=key)


def pjax_model(inputs, outputs):
    return nn.Sequential(nn.Linear(*inputs, 8), nn.ReLU(8), nn.Linear(8, outputs))


def pair(inputs, outputs):
    return lambda key: 0.1 * jax.random.normal(key, (*inputs, outputs)), lambda p, x: x @ p


MODELS = [linen_model, nnx_model, equinox_model, pjax_model, pair]
CENTRES = np.random.default_rng(1).normal(size=(3, 4))
Y = np.random.default_rng(2).integers(3, size=200)
X = CENTRES[Y] + 0.2 * np.random.default_rng(3).normal(size=(200, 4))
FAST = Config(learning_rate=0.03, max_steps=60, check_every=30, batch_size=32)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_a_model_of_every_kind(tmp_path: Path, model: object) -> None:
    found = train(FAST.on(seeds=(0, 1)), tmp_path / "run", data=(X, Y), model=model)
    assert found.results[0].test > 90
    assert (
        found.results[0].test != found.results[1].test or found.checks[0].loss[0] != found.checks[0].loss[1]
    )
    scores = predict(tmp_path / "run", X, model=model)
    assert np.mean(scores.argmax(-1) == Y) > 0.9
    assert evaluate(tmp_path / "run", (X, Y), model=model)["data"] > 90
    with pytest.raises(pjax.PjaxError, match=r"targets y of shape \(3,\)"):
        evaluate(tmp_path / "run", (X, Y[:3]), model=model)
    assert jax.tree.leaves(load_params(tmp_path / "run", 1, model=model))
    with pytest.raises(pjax.PjaxError, match="model was given from Python: give it again"):
        predict(tmp_path / "run", X)
    again = train(None, tmp_path / "run", resume=True, data=(X, Y), model=model, max_steps=90)
    assert again.checks[-1].step == 90
    with pytest.raises(pjax.PjaxError, match="data are not those that the run began with"):
        train(None, tmp_path / "run", resume=True, data=(X + 1, Y), model=model, max_steps=120)


def test_a_model_that_is_given_begins_with_the_parameters_of_another_run(tmp_path: Path) -> None:
    first = train(FAST, tmp_path / "first", data=(X, Y), model=pair)
    config = FAST.on(init_from=str(tmp_path / "first"), max_steps=30)
    second = train(config, tmp_path / "second", data=(X, Y), model=pair)
    assert second.checks[0].loss[0] < first.checks[0].loss[0]
    with pytest.raises(pjax.PjaxError, match="it was written by another run"):
        train(config, tmp_path / "third", data=(X, Y), model=pjax_model)


def with_batch_norm():
    import flax.linen

    return flax.linen.Sequential([flax.linen.Dense(3), flax.linen.BatchNorm(use_running_average=True)])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.Linear(4, 2), r"must give outputs of shape \(2, 3\).*got \(2, 2\)"),
        (lambda width: width, "it wants width too"),
        (lambda: 3, "expected a module of Flax, Equinox or pjax.nn, or two functions .*got int"),
        (lambda: equinox_model((4,), 3, jax.random.key(0)), "give a function that makes it from a key"),
        ((lambda _: {}, lambda _, x: x[:, :3]), "has no parameters"),
        (with_batch_norm, r"has a state beside its parameters \(batch_stats\)"),
    ],
)
def test_models_that_are_refused(model: object, message: str) -> None:
    with pytest.raises(pjax.PjaxError, match=message):
        Loop(FAST.on(data="given", model="given"), dataset=own_data.load((X, Y)), model=model)


def test_a_model_by_name(tmp_path: Path) -> None:
    assert Config(data="digits", model="networks:make").widths == ()
    with pytest.raises(pjax.PjaxError, match=r"no module nowhere: expected the file nowhere\.py in"):
        own_model.find("nowhere:make")
    with pytest.raises(pjax.PjaxError, match=r"tests\.test_own has no 'nothing', it has"):
        own_model.find("tests.test_own:nothing")
    (tmp_path / "broken_network.py").write_text("import nothing_such\n")
    with pytest.raises(ModuleNotFoundError, match="nothing_such"):
        own_model.find("broken_network:make")


FORM = dataclasses.asdict(
    own_data.Form(shape=(2,), outputs=3, columns=(("width", None), ("colour", ("red",))))
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": 2}, "'shape' must be a list, got 2"),
        ({"outputs": "3"}, "'outputs' must be a whole number, got '3'"),
        ({"columns": [["width", 5]]}, "'columns' must be a list, got 5"),
        ({"columns": [["width"]]}, r"'columns' must hold 2 values, got \['width'\]"),
        ({"task": "klasses"}, "'task' must be one of classes, regression; got 'klasses'"),
        ({"dtype": "float99"}, "'dtype' must be one of float32, int32"),
        ({"scale": [1.0]}, "'shift' and 'scale' must hold a number for each feature"),
        ({"mine": 1}, "must be one of task, .*; got 'mine'"),
    ],
)
def test_what_is_no_form_of_data_is_refused(tmp_path: Path, changes: dict, message: str) -> None:
    file = tmp_path / "data.json"
    file.write_text(json.dumps(FORM | changes))
    with pytest.raises(pjax.InputError, match=rf"data.json: .*{message}"):
        saved_form(tmp_path)
    file.write_text(json.dumps(FORM))
    assert saved_form(tmp_path) == own_data.Form(**FORM)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "a:b", "widths": (3,)}, "widths does not apply to a model of your own"),
        ({"model": "a:b", "method": "fa"}, "FA is for the model mlp, got a:b"),
        ({"target": "y"}, "target is for data of your own"),
        ({"standardise": False}, 'standardise is for data of your own.* say data="given"'),
        ({"data": "a.npz", "target": "y"}, "target is for the columns of a file .csv"),
        ({"data": "a.csv"}, "say which column of a.csv"),
        ({"data": "a.cvs"}, "data must be one of digits.*a file .csv or .npz"),
        ({"method": "dr", "clip": 1.0}, "clip does not apply to the method dr"),
        ({"schedule": "cosin"}, "Did you mean 'cosine'"),
        ({"decay_steps": 10}, "decay_steps is for a schedule that falls"),
        ({"schedule": "linear", "warmup": 50, "max_steps": 50}, "warmup must end before decay_steps, 50"),
        ({"weight_decay": -1.0}, "weight_decay must be a number from 0"),
        ({"log": "tensorbord"}, "Did you mean 'tensorboard'"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict, message: str) -> None:
    with pytest.raises(pjax.PjaxError, match=message):
        Config(**settings).made_method()


@pytest.mark.parametrize("method", ["ep", "adam", "ap"])
def test_a_regression(tmp_path: Path, method: str) -> None:
    """Numbers far from zero come out as they went in, by projections and by gradients."""
    more = {} if method == "ap" else {"learning_rate": 0.02}
    config = Config(method=method, max_steps=500, check_every=250, batch_size=32, **more)
    x = np.random.default_rng(0).uniform(-1, 1, (300, 2))
    y = 500 + 30 * x[:, 0] - 10 * x[:, 1]
    run = train(config, tmp_path / "run", data=(x, y))
    assert run.score == "R²"
    assert run.config["task"] == "regression"
    assert run.results[0].test > (80 if method == "ap" else 98)
    found = predict(tmp_path / "run", x)[:, 0]
    score = evaluate(tmp_path / "run", (x, y))
    assert score["data rmse"] == pytest.approx(np.sqrt(np.mean((found - y) ** 2)), rel=1e-4)
    assert score["data"] == pytest.approx(100 * (1 - np.mean((found - y) ** 2) / y.var()), rel=1e-4)


class TestBatches:
    """Data that come one batch after another."""

    @staticmethod
    def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
        rows = np.random.default_rng(number).integers(200, size=16)
        return X[rows], Y[rows]

    def test_an_iterator_and_a_function_train_alike_and_resume(self, tmp_path: Path) -> None:
        def from_number(start: int):
            return (self.batch(i) for i in range(start, 1000))

        config = FAST.on(batch_size=None, max_steps=40, check_every=20)
        whole = train(config, tmp_path / "whole", data=own_data.from_batches(from_number(0), (X, Y)))
        assert whole.results[0].test > 80
        assert whole.config["batch_size"] == 16
        short = config.on(max_steps=20)
        train(short, tmp_path / "parts", data=own_data.from_batches(from_number, (X, Y)))
        again = {"resume": True, "data": own_data.from_batches(from_number, (X, Y))}
        parts = train(short, tmp_path / "parts", max_steps=40, **again)
        assert [check.loss for check in parts.checks] == [check.loss for check in whole.checks]

    def test_an_epoch_is_begun_again(self) -> None:
        found = own_data.from_batches([self.batch(i) for i in range(3)], (X, Y))
        stream = found.stream(2)
        seen = [next(stream)[0] for _ in range(3)]
        np.testing.assert_allclose(seen[1], self.batch(0)[0], rtol=1e-6)

    def test_numbers_stay_what_they_are(self) -> None:
        found = own_data.from_batches([(X[:16], X[:16, :1] + 5)], (X, X[:, :1] + 5))
        np.testing.assert_allclose(next(found.stream(0))[1], X[:16, :1] + 5, rtol=1e-6)
        np.testing.assert_allclose(found.x_val, X, rtol=1e-6)

    def test_what_is_refused(self) -> None:
        with pytest.raises(pjax.PjaxError, match="say Config"):
            train(FAST, data=datasets.load("digits"))
        with pytest.raises(pjax.PjaxError, match=r"got generator; batches from an iterator .*from_batches"):
            train(FAST, data=(self.batch(i) for i in range(3)))
        with pytest.raises(pjax.PjaxError, match="there is none"):
            own_data.from_batches(iter([]), (X, Y))
        found = own_data.from_batches(iter([self.batch(0)]), (X, Y)).stream(0)
        next(found)
        with pytest.raises(pjax.PjaxError, match="there is no batch 1: the iterator is used up"):
            next(found)
        twice = own_data.from_batches((self.batch(i) for i in range(9)), (X, Y))
        next(twice.stream(0))
        with pytest.raises(pjax.PjaxError, match="there is no batch 0: the iterator is used up"):
            next(twice.stream(0))
        odd = [self.batch(0), tuple(part[:3] for part in self.batch(1))]
        stream = own_data.from_batches(odd, (X, Y)).stream(1)
        with pytest.raises(pjax.PjaxError, match="batch 1 has inputs of shape"):
            next(stream)

    def test_prefetching_hands_on_errors_and_ends(self) -> None:
        def broken():
            yield np.ones(2)
            raise OSError("the disk is gone")

        batches = datasets.prefetch(broken())
        assert isinstance(next(batches), jax.Array)
        with pytest.raises(OSError, match="the disk is gone"):
            next(batches)
        endless = datasets.prefetch(itertools.repeat(np.ones(2)))
        next(endless)
        endless.close()


class TestLearningRates:
    def test_schedules(self) -> None:
        from pjax.experiments.learners import Rates, transformation

        cosine = Rates(0.2, "cosine", warmup=10, decay_steps=30)
        assert [round(float(cosine.at(s)), 6) for s in (0, 5, 10, 20, 30, 40)] == [0, 0.1, 0.2, 0.1, 0, 0]
        # Steps of the outer optimiser that count as ten of the run.
        tx = transformation("sgd", Rates(1.0, "linear", 0, 40), each=10)
        state, moved = tx.init(jnp.zeros(())), []
        for _ in range(5):
            update, state = tx.update(jnp.ones(()), state)
            moved.append(round(float(-update), 4))
        assert moved == [1.0, 0.75, 0.5, 0.25, 0.0]

    @pytest.mark.parametrize("optimiser", ["sgd", "adam"])
    def test_decay_and_clipping(self, optimiser: str) -> None:
        from pjax.experiments.learners import Rates, transformation

        decayed = transformation(optimiser, Rates(0.1, weight_decay=0.5))
        update, _ = decayed.update(jnp.zeros(()), decayed.init(jnp.ones(())), jnp.ones(()))
        assert float(update) == pytest.approx(-0.05)
        clipped = transformation("sgd", Rates(1.0, clip=2.0))
        update, _ = clipped.update(jnp.array([30.0, 40.0]), clipped.init(jnp.ones(2)))
        np.testing.assert_allclose(update, [-1.2, -1.6], rtol=1e-5)

    def test_a_rate_that_has_fallen_to_zero_ends_a_run(self, tmp_path: Path) -> None:
        config = FAST.on(schedule="linear", warmup=5, max_steps=30)
        assert config.decay_steps == 30
        train(config, tmp_path / "run", data=(X, Y))
        with pytest.raises(pjax.PjaxError, match="fallen to 0 at step 30"):
            train(None, tmp_path / "run", resume=True, data=(X, Y), max_steps=60)


class TestLoop:
    """Callbacks, loggers, and saving."""

    def test_parameters_and_state_are_what_was_saved(self, tmp_path: Path) -> None:
        params = {"w": jnp.ones((4, 3)), "b": jnp.zeros(3, jnp.bfloat16)}
        optimizer = pjax.optim.ExtrapolatedProjections(learning_rate=0.1)

        def step(params, state, n):
            losses = lambda p: pjax.cross_entropy(X[:16] @ p["w"] + p["b"], Y[:16])  # noqa: E731
            for _ in range(n):
                params, state, _ = optimizer.update(losses, params, state)
            return params, state

        whole, _ = step(params, optimizer.init(params), 4)
        half = step(params, optimizer.init(params), 2)
        tree = {
            "params": half[0],
            "state": half[1],
            "key": jax.random.key(5),
            "step": 2,
            "name": np.arange(3),
        }
        like = {"params": params, "state": optimizer.init(params), "key": jax.random.key(0), "step": 0}
        path = pjax.save(tmp_path / "new" / "state.npz", tree)
        with pytest.raises(pjax.PjaxError, match=r"state\.npz: holds name, which this run does not have"):
            pjax.load(path, like)
        found = pjax.load(path, like | {"name": np.zeros(3, int)})
        assert found["step"] == 2
        assert jax.random.bits(found["key"]) == jax.random.bits(tree["key"])
        assert found["params"]["b"].dtype == jnp.bfloat16
        ended, _ = step(found["params"], found["state"], 2)
        assert jax.tree.all(jax.tree.map(jnp.array_equal, ended, whole))
        path.write_bytes(path.read_bytes()[:-40])
        with pytest.raises(pjax.PjaxError, match="not a checkpoint, or cut off"):
            pjax.load(path, like)

    def test_leaves_come_back_as_what_they_were(self, tmp_path: Path) -> None:
        records = np.zeros(2, [("a", "f4")])
        tree = {"name": "abc", "rate": np.float32(0.5), "records": records, "key": jax.random.key(3)}
        shapes = {"key": jax.eval_shape(lambda: jax.random.key(0))}
        found = pjax.load(pjax.save(tmp_path / "state.npz", tree), tree | shapes)
        for name in ("name", "rate"):
            assert (type(found[name]), found[name]) == (type(tree[name]), tree[name])
        assert np.array_equal(found["records"], records)
        assert jax.random.bits(found["key"]) == jax.random.bits(tree["key"])

    def test_what_a_file_cannot_hold_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "state.npz"
        with pytest.raises(pjax.InputError, match=r"no array, number or key, but <.*eqx\.partition"):
            pjax.save(path, {"w": jnp.ones(2), "activation": jnp.tanh})
        with pytest.raises(pjax.InputError, match="the same name in a file, a/w: rename"):
            pjax.save(path, {"a/w": jnp.ones(2), "a": {"w": jnp.zeros(2)}})
        assert not path.exists()

    def test_callbacks_see_checks_and_end_a_run(self, tmp_path: Path) -> None:
        seen = []

        def callback(p):
            seen.append((p.step, p.validation, jax.tree.map(np.shape, p.params())))
            if p.step == 60:
                raise StopTraining

        found = train(FAST.on(max_steps=90), tmp_path / "run", data=(X, Y), callbacks=[callback])
        assert [step for step, _, _ in seen] == [30, 60]
        assert seen[0][2]["out.weight"] == (64, 3)
        assert found.results[0].stopped == "callback"

    def test_a_resumed_run_logs_every_check_once(self, tmp_path: Path) -> None:
        taken = []

        class Mine(loggers.Logger):
            def __call__(self, step, values):
                taken.append((step, sorted(values)))

        config = FAST.on(log="csv")
        train(config, tmp_path / "run", data=(X, Y), loggers=[Mine()])
        assert taken == [(step, ["loss", "seconds", "test", "validation"]) for step in (30, 60)]
        with (tmp_path / "run" / "metrics.csv").open("a") as file:
            file.write("90,1,2,3,4\n")  # of a check that will be made again
        train(None, tmp_path / "run", resume=True, data=(X, Y), max_steps=90)
        rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").read_text().splitlines()))
        assert [row["step"] for row in rows] == ["30", "60", "90"]
        checks = read_run(tmp_path / "run").checks
        assert [float(row["loss"]) for row in rows] == pytest.approx([c.loss[0] for c in checks], abs=1e-5)

    def test_weights_and_biases_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        told: list[object] = []
        started = types.SimpleNamespace(
            step=2, log=lambda values, step: told.append((step, values)), finish=lambda: told.append("end")
        )
        fake = types.ModuleType("wandb")
        fake.init = lambda **settings: told.append(settings) or started  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "wandb", fake)
        with loggers.WandB("runs/mine", {"method": "ep"}, project="p") as log:
            log(1, {"loss": 0.9})  # before the step that it has come to
            log(3, {"loss": 0.5})
        assert told[0]["id"] == told[0]["name"] == "mine"
        assert told[0]["project"] == "p"
        assert told[1:] == [(3, {"loss": 0.5}), "end"]

    @pytest.mark.parametrize("name", ["tensorboard", "wandb"])
    def test_a_logger_that_is_not_installed_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setitem(sys.modules, {"tensorboard": "tensorboardX"}.get(name, name), None)
        with pytest.raises(pjax.PjaxError, match=rf"pip install \"pjax-learn\[{name}\]\""):
            loggers.make(name, tmp_path, {})

    def test_the_commands_import_no_logger_unless_asked(self) -> None:
        code = "import sys, pjax.experiments.cli; print({'tensorboardX', 'wandb', 'flax'} & {*sys.modules})"
        assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_seeds_from_the_command_line(tmp_path: Path) -> None:
    data = flowers(tmp_path / "flowers.csv")
    small = ["--target", "kind", "--widths", "1x4", "--max-steps", "20"]
    for how in ("--together", "--one-by-one"):
        said = run(
            "train", "--data", data, *small, "--seed", "3", "--seeds", "2", how, "--folder", tmp_path / how
        )
        assert "pjax predict" in said
        found = read_run(tmp_path / how)
        assert [result.seed for result in found.results] == [3, 4]
    config = json.loads((tmp_path / "--together" / "config.json").read_text())
    used = {"task": "classes", "validation": 0.1, "standardise": True, "schedule": "constant", "clip": 0.0}
    assert used.items() <= config.items()


def test_shells_complete_names() -> None:
    words = {"_PJAX_COMPLETE": "complete_bash", "COMP_WORDS": "pjax train --method d", "COMP_CWORD": "3"}
    result = CliRunner().invoke(app, [], env=words, prog_name="pjax")
    assert result.output.split() == ["dr", "dm", "dr-fp", "dm-fp"]
