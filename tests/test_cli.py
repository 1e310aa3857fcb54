"""The command line: help, bad options, each command once, and how they end."""

import inspect
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import typing
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import pjax
import pjax_command
from benchmarks import kills
from pjax.experiments import cli, config, learners, loggers, methods, own_data
from pjax.experiments import compare as comparing
from pjax.experiments import data as datasets
from pjax.experiments.checkpoint import last
from pjax.experiments.config import Config
from pjax.experiments.evaluate import predict
from pjax.experiments.report import report
from pjax.experiments.results import read_run, read_runs
from pjax.experiments.train import Progress, train
from pjax.tools.files import write_atomically
from pjax_command import app

pytestmark = pytest.mark.usefixtures("quick_compilation")


# --- Commands ---

SMALL = ["--widths", "1x8", "--batch-size", "64", "--max-steps", "100", "--check-every", "50"]


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize("command", ["", "train", "compare", "report", "data", "data get", "data list"])
def test_help(command: str) -> None:
    assert "Usage:" in run(*command.split(), "--help")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train --metod dr", "No such option"),
        ("train --method drr", "method must be one of"),
        ("train --data mnst", "Did you mean 'mnist'?"),
        ("train --widths 4by3", "an architecture is written as"),
        ("train --learning-rate -1", "learning_rate must be a positive number"),
        ("train --batch-size 100000", "batch_size must be at most"),
        ("compare --preset rnn-shakespeare --init-scale 2", "init_scale is for the models mlp and cnn"),
        (
            "compare --preset mlp-mnist --retime --seeds 2 --methods dr --untimed",
            "--seeds, --untimed, --methods: --retime runs nothing",
        ),
        ("train --method dr --learning-rate 0.1", "it takes steps_per_batch, loss_scale, consensus"),
        ("train --method dr:foo=1", "an option of dr must be one of groups, precision"),
        ("train --method dr:edges=some", "edges must be one of 'implicit', 'explicit', got 'some'"),
        ("train --method ep:steps=1:steps=2", "ep:steps=1:steps=2: steps is given twice"),
        ("train --seeds 100000000", "less than or equal to 10000"),
        ("train --schedule linear --decay-steps 0", "decay_steps must be at least 1, got 0"),
        ("train --data a.csv --target b --validation nan", "validation must be a share of the rows"),
        ("train --model :make", "written as package.module:make, got ':make'"),
        ("train --model ../networks:make", "written as package.module:make"),
        ("graph --data mine.csv", "for your own: pjax.draw"),
        ("train --consensus exact", "consensus does not apply to the method ep"),
        ("train --check-every 0", "check_every must be at least 1, got 0"),
        ("train --data mnist", "pjax data get mnist"),
        ("train --resume nowhere", "no run to resume"),
        ("train --resume nowhere --seed 3", "drop --seed"),
        ("compare --preset mlp-mnst", "Did you mean 'mlp-mnist'?"),
        ("compare --preset mlp-mnist --methods dr,zz", "method must be one of"),
        ("compare --preset mlp-mnist --architectures 2x2", "architecture must be one of"),
        ("compare --preset mlp-mnist --methods fa --architectures 4x128+skip", "no run is left"),
        ("compare", "name one or more"),
        ("compare --all --preset mlp-mnist", "name one or more"),
        ("report nowhere", "no such folder"),
        ("data get minst", "Did you mean 'mnist'?"),
        ("data get", "Missing argument"),
    ],
)
def test_bad_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, message: str) -> None:
    monkeypatch.setenv("PJAX_DATA", str(tmp_path / "data"))
    assert message in run(*arguments.split(), code=2)
    assert not list(tmp_path.rglob("*.json*")), "a command that was refused has left a run"


def test_train_writes_a_folder_and_says_where(tmp_path: Path) -> None:
    output = run("train", "--method", "ap", *SMALL)
    folder = tmp_path / "runs" / "digits-mlp-1x8-ap"
    files = {"config.json", "metrics.jsonl", "results.jsonl", "run.png"}
    files |= {"checkpoint-1.npz", "checkpoint-2.npz"}
    assert {path.name for path in folder.iterdir()} == files
    for word in ("step 100", "test %", "runs/digits-mlp-1x8-ap/run.png"):
        assert word in output
    about = json.loads((folder / "config.json").read_text())
    assert about["method"] == "ap"
    assert "cores" in about["device"] or about["device"]
    run("train", "--method", "ap", *SMALL)
    assert (tmp_path / "runs" / "digits-mlp-1x8-ap-2").is_dir()


@pytest.mark.parametrize(
    "name", ["", "mlp-mnist 4x128+skip-ap", "exchanges-mlp-mnist 1x128-" + "ap_metric_" * 6]
)
@pytest.mark.parametrize("width", [80, 120])
def test_the_bar_can_be_read(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says how long it still takes, with no line that is broken or cut."""
    file = io.StringIO()
    monkeypatch.setattr(
        cli, "console", Console(file=file, width=width, force_terminal=True, color_system=None)
    )
    with cli._training_bar() as show:
        for step in (1000, 12_000, 14_000):
            show(name, Progress(step, 20_000, 0.1234, 95.1, 94.2, 0.2))
            time.sleep(0.01)
    last = [
        line for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\r", file.getvalue()).split("\r") if "/20" in line
    ][-1]
    assert len(last.rstrip()) <= width
    assert last.count("━") == 8  # of 12
    for word in ("14,000/20,000", "loss 0.123", "left"):
        assert word in last
    assert re.search(r"\d+:\d\d left", last)
    assert ("test 94.2 %" in last) or (name and width == 80)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def make(:", "fails: SyntaxError: invalid syntax (broken.py, line 1)"),
        ("import nosuchpackage", "fails in broken.py, line 1: ModuleNotFoundError: No module named 'nosuch"),
        ("def make():\n    return 1 / 0", "fails in broken.py, line 2: ZeroDivisionError: division by zero"),
        (
            "def make():\n    return lambda key: {'w': key * 1.0}, lambda p, x:\\\n        x @ p['v']",
            "fails in broken.py, line",
        ),
    ],
)
def test_a_model_that_fails_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    (tmp_path / "broken.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    assert message in run("train", "--model", "broken:make", code=2)


def test_what_is_damaged_is_told_in_a_line(tmp_path: Path) -> None:
    """With a warning where there is an older checkpoint, an error where there is none."""
    folder = tmp_path / "run"
    train(Config(max_steps=40, check_every=20, widths=(8,), batch_size=64), folder)
    (folder / "checkpoint-40.npz").write_bytes(b"cut off")
    words = [sys.executable, "-m", "pjax_command", "eval", str(folder)]
    found = subprocess.run(words, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert re.fullmatch(r"warning: \S+-40.npz: not a checkpoint.* from checkpoint-20.npz\n", found.stderr)
    (folder / "checkpoint-20.npz").unlink()
    assert "None is whole: begin a new run" in run("eval", folder, code=2)
    (folder / "config.json").write_text('{"data": null}')
    assert f"{folder}/config.json: data must be a str" in run("eval", folder, code=2)
    (folder / "config.json").write_text("{")
    assert "config.json: not JSON" in run("train", "--resume", folder, code=2)


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are texts elsewhere")
def test_names_of_files_may_be_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No text in UTF-8, and what would be markup."""
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"[b] \xff $.csv")
    Path(name).write_text("a,kind\n" + "1,x\n2,y\n" * 50)
    small = ["--max-steps", "20", "--widths", "1x8", "--json"]
    json.loads(run("train", "--data", name, "--target", "kind", *small))
    assert Path("runs", os.fsdecode(b"[b] \xff $-mlp-1x8-ep"), "run.png").is_file()
    report("runs")
    monkeypatch.setattr(cli, "console", Console(file=(printed := io.StringIO()), width=200))
    cli._print_results(list(read_runs("runs")))
    assert "[b]" in printed.getvalue()


def test_a_terminal_need_not_know_all_letters(tmp_path: Path) -> None:
    train(Config(max_steps=20, check_every=20, widths=(8,), batch_size=64), tmp_path / "größe")
    words = [sys.executable, "-m", "pjax_command", "list", str(tmp_path)]
    plain = os.environ | {"PYTHONIOENCODING": "ascii"}
    found = subprocess.run(words, env=plain, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "gr??e" in "".join(found.stdout.split())


def test_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pjax", "--version"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0
    assert done.stdout.startswith("pjax-learn ")


@pytest.mark.parametrize("arguments", ["--help", "train --help", "--version", "train --metod dr"])
def test_what_runs_no_command_imports_little(arguments: str) -> None:
    code = (
        "import sys, pjax_command\n"
        "try: pjax_command.main()\n"
        "finally: print('imported:', *{'jax', 'matplotlib', 'numpy', 'pjax', 'rich'} & {*sys.modules})"
    )
    command = [sys.executable, "-c", code, *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "pjax" in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "imported:"


def test_the_command_line_knows_the_names_of_the_package() -> None:
    assert datasets.names() == pjax_command.DATA
    assert own_data.SUFFIXES == pjax_command.SUFFIXES
    assert config.MODELS == pjax_command.MODELS
    assert tuple(methods.LABELS) == pjax_command.METHODS
    assert learners.SCHEDULES == pjax_command.SCHEDULES
    assert loggers.KINDS == pjax_command.LOGGERS
    kinds = typing.get_type_hints(Config) | {"widths": str}
    declared = {name: kind for name, (kind, _) in pjax_command.SETTINGS.items()}
    assert {name: kind | None for name, kind in declared.items()} == {
        name: kinds[name] | None for name in declared
    }


def test_commands_take_what_their_functions_take() -> None:
    commands = [*app.registered_commands, *pjax_command.data_app.registered_commands]
    assert len(commands) == 12
    for command in commands:
        taken = inspect.signature(command.callback).parameters
        inspect.signature(getattr(cli, command.callback.__name__)).bind(**dict.fromkeys(taken))


@pytest.mark.parametrize("missing", ["matplotlib", "rich", "typer"])
def test_the_program_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules['{missing}'] = None; from pjax.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert f'{missing}: pip install "pjax-learn[experiments]"' in done.stderr


@pytest.mark.parametrize("method", [[], ["--method", "dr"]])
def test_defaults_are_those_of_python(
    method: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Config] = []

    def instead(config: Config, *_: object, **__: object) -> None:
        given.append(config)
        raise pjax.InputError("enough")

    monkeypatch.setattr("pjax.experiments.train.train", instead)
    monkeypatch.chdir(tmp_path)
    run("train", *method, code=2)
    assert given == [Config(**dict(zip(["method"], method[1:], strict=False)))]


def test_few_steps_and_more_of_them_later(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(
        "train",
        "--method",
        "dr",
        "--widths",
        "1x8",
        "--batch-size",
        "64",
        "--max-steps",
        "100",
        "--folder",
        folder,
    )
    assert [check.step for check in read_run(folder).checks] == [100]
    run("train", "--resume", folder, "--max-steps", "250", "--patience", "3")
    after = read_run(folder)
    assert [check.step for check in after.checks] == [100, 200, 250]
    assert after.config["max_steps"] == 250
    assert after.config["patience"] == 3


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    arguments = ["--method", "adam", "--learning-rate", "0.01", *SMALL, "--folder", folder]
    assert run("train", *arguments, "--quiet") == ""
    return folder


class TestRuns:
    """What is done with runs that have ended."""

    def test_as_json(self, done: Path, tmp_path: Path) -> None:
        options = ["--method", "adam", "--init-scale", "2", *SMALL]
        output = run("train", *options, "--folder", tmp_path / "run", "--json")
        found = json.loads(output)
        assert found["results"][0]["last_step"] == found["last_step"] == 100
        assert (found["config"]["learning_rate"], found["config"]["init_scale"]) == (0.001, 2)
        assert Path(found["plot"]).exists()
        (listed,) = json.loads(run("list", done.parent, "--json"))
        assert listed["folder"] == str(done)
        assert listed["finished"]

    def test_a_list(self, done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(done.parent.parent)
        output = run("list", done.parent.name)  # a long path would be broken
        for word in ("first", "Adam", "100", f"{read_run(done).results[0].test:.2f}", "limit"):
            assert word in output
        assert "no such folder" in run("list", done / "nowhere", code=2)

    def test_the_accuracy_is_that_of_the_results(self, done: Path, tmp_path: Path) -> None:
        found = json.loads(run("eval", done, "--json"))
        result = read_run(done).results[0]
        assert found["test"] == pytest.approx(result.test, abs=1e-4)
        assert found["train"] == pytest.approx(result.train, abs=1e-4)
        assert found["validation"] == pytest.approx(result.best_validation, abs=1e-4)
        digits = datasets.load("digits")
        np.savez(tmp_path / "own.npz", x=digits.x_test.reshape(-1, 64), y=digits.y_test)
        assert f"own.npz: {result.test:.2f} %" in run("eval", done, "--data", tmp_path / "own.npz")

    def test_predictions(self, done: Path, tmp_path: Path) -> None:
        digits = datasets.load("digits")
        np.save(tmp_path / "x.npy", digits.x_test)
        for name in ("classes.npy", "table.csv"):
            run("predict", done, "--data", tmp_path / "x.npy", "--out", tmp_path / name)
        classes = np.load(tmp_path / "classes.npy")
        assert 100 * np.mean(classes == digits.y_test) == pytest.approx(read_run(done).results[0].test)
        table = np.genfromtxt(tmp_path / "table.csv", delimiter=",", names=True)
        assert table.dtype.names == ("class", *(f"score_{i}" for i in range(10)))
        np.testing.assert_array_equal(table["class"], classes)
        np.testing.assert_allclose(table["score_3"], predict(done, digits.x_test)[:, 3], rtol=1e-5)

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            (
                {"x": np.zeros((3, 5)), "y": np.zeros(3, int)},
                "expected inputs of shape (n, 8, 8, 1), as the run has; got (3, 5)",
            ),
            (
                {"x": np.full((3, 64), np.nan), "y": np.zeros(3, int)},
                "x must be finite numbers, row 0",
            ),
            ({"x": np.zeros((3, 64))}, "labels 'y' are missing, it holds x"),
            (
                {"x": np.zeros((3, 64)), "y": np.zeros(2, int)},
                "inputs x of shape (3, 8, 8, 1) do not go with targets y of shape (2,)",
            ),
            ({"x": np.zeros((3, 64)), "y": np.full(3, 12)}, "labels must be 0 to 9, got 12 to 12"),
            ({"z": np.zeros(3)}, "inputs 'x' are missing, it holds z"),
        ],
    )
    def test_bad_data(self, done: Path, tmp_path: Path, arrays: dict, message: str) -> None:
        np.savez(tmp_path / "own.npz", **arrays)
        assert message in run("eval", done, "--data", tmp_path / "own.npz", code=2)

    def test_bad_files(self, done: Path, tmp_path: Path) -> None:
        (tmp_path / "text.npz").write_text("nothing")
        assert "expected .npy, .npz with arrays" in run("eval", done, "--data", tmp_path / "text.npz", code=2)
        assert "no such file" in run("eval", done, "--data", tmp_path / "none.npz", code=2)
        message = run("predict", done, "--data", tmp_path / "x.npy", "--out", tmp_path / "y.txt", code=2)
        assert "written as .npy or .csv" in message

    @pytest.mark.parametrize("method", ["adam", "ep:groups=2:sync_every=10", "dr"])
    def test_beginning_with_the_parameters_of_another_run(
        self, done: Path, tmp_path: Path, method: str
    ) -> None:
        begun = tmp_path / "begun"
        arguments = ["--method", method, *SMALL, "--max-steps", "50", "--folder", begun]
        run("train", *arguments, "--init-from", done)
        new = tmp_path / "new"
        run("train", *arguments[:-1], new)
        losses = [read_run(folder).checks[0].loss[0] for folder in (begun, new)]
        assert losses[0] < 0.7 * losses[1]
        assert read_run(begun).config["init_from"] == str(done)

    def test_another_network_is_refused(self, done: Path, tmp_path: Path) -> None:
        arguments = ["--max-steps", "50", "--folder", tmp_path / "run", "--init-from", done]
        message = run("train", "--widths", "1x9", *arguments, code=2)
        assert "hidden.0.weight is float32[64, 8], this run has float32[64, 9]" in message
        assert "no such file" in run("train", *arguments[:-1], tmp_path / "nowhere", code=2)


class TestCompare:
    @pytest.fixture
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        quick = {"seeds": (0, 1), "steps": 100, "projection_steps": 250, "batch_size": 64}
        preset = comparing.Preset("digits", "mlp", ("1x8", "2x8+skip"), ("adam", "ap"), quick)
        monkeypatch.setitem(comparing.PRESETS, "small", preset)

    @pytest.mark.usefixtures("small")
    def test_a_comparison_goes_on_where_it_stopped(self, tmp_path: Path) -> None:
        class StopError(Exception):
            pass

        seen: list[str] = []

        def progress(name: str, p: object) -> None:
            seen.append(name)
            if name == "small 1x8-ap" and getattr(p, "step", 0) >= 150:
                raise StopError

        with pytest.raises(StopError):
            comparing.compare("small", tmp_path, quick=True, progress=progress)
        folder = tmp_path / "quick" / "small"
        assert read_run(folder / "1x8-adam").finished
        assert len(read_run(folder / "1x8-ap").checks) == 2
        assert "quick.runs.jsonl" in run("pack", tmp_path)
        assert {path.parent.name for path in folder.rglob("config.json")} == {"1x8-ap"}
        (folder / "1x8-adam").mkdir()
        (folder / "1x8-adam" / "checkpoint-9.npz").touch()  # it was killed before it could be removed
        seen.clear()
        runs = comparing.compare("small", tmp_path, quick=True, progress=lambda name, _: seen.append(name))
        names = {run.folder.name for run in runs}
        assert names == {"1x8-adam", "1x8-ap", "2x8+skip-adam", "2x8+skip-ap"}
        assert all(run.finished and run.quick and len(run.results) == 2 for run in runs)
        assert "small 1x8-adam" not in seen, "a run that had ended was made again"
        assert not list(tmp_path.rglob("*.npz")), "checkpoints are left"

    @pytest.mark.usefixtures("small")
    @pytest.mark.parametrize("timed", [True, False])
    def test_runs_are_timed_again(self, tmp_path: Path, timed: bool) -> None:
        (before,) = comparing.compare(
            "small", tmp_path, quick=True, only_methods=["adam"], only_architectures=["1x8"], timed=timed
        )
        assert math.isfinite(before.seconds.mean) == timed
        assert "NaN" not in (before.folder / "results.jsonl").read_text()
        assert "NaN" not in run("list", tmp_path, "--json")
        assert "small 1x8-adam:" in run(
            "compare", "--preset", "small", "--quick", "--retime", "--folder", tmp_path
        )
        after = read_run(before.folder)
        for check, again in zip(before.checks, after.checks, strict=True):
            assert (check.step, check.test) == (again.step, again.test)
        for old, new in zip(before.results, after.results, strict=True):
            assert (old.test, old.steps) == (new.test, new.steps)
            assert new.ms_per_step > 0
            assert new.seconds == pytest.approx(new.steps * new.ms_per_step / 1000, abs=1e-5)
        config = before.folder / "config.json"
        config.write_text(config.read_text().replace("cores", "hearts"))
        message = run("compare", "--preset", "small", "--quick", "--retime", "--folder", tmp_path, code=2)
        assert "hearts, cannot be timed on CPU" in message

    @pytest.mark.usefixtures("small")
    def test_from_the_command_line_to_a_report(self, tmp_path: Path) -> None:
        output = run(
            "compare", "--preset", "small", "--quick", "--methods", "adam,ap", "--architectures", "1x8",
            "--seeds", "1", "--folder", tmp_path,
        )  # fmt: skip
        assert "digits mlp 1x8 AP," in output
        output = run("report", tmp_path)
        written = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
        assert {".md", ".png"} <= written
        assert ".svg" in run("report", tmp_path, "--plots", "svg")

    def test_presets_are_the_blocks_of_the_tables(self) -> None:
        from pjax.experiments import paper
        from pjax.experiments.results import architecture

        rows = {(row.data, row.model, row.architecture, row.method) for row in paper.rows()}
        ours = {
            (c.data, c.model, architecture(c.widths, c.skip), c.method)
            for preset in comparing.PRESETS.values()
            for c in preset.configs()
            if not c.method.endswith("-fp")
        }
        assert ours >= rows

    @pytest.mark.parametrize("name", comparing.PRESETS)
    def test_quick_versions_are_smaller(self, name: str) -> None:
        preset = comparing.PRESETS[name]
        whole, quick = list(preset.configs()), list(preset.configs(quick=True))
        assert [c.name for c in whole] == [c.name for c in quick]
        for a, b in zip(whole, quick, strict=True):
            assert isinstance(b, Config)
            assert b.quick
            assert b.max_steps < a.max_steps
            assert len(b.seeds) < len(a.seeds)

    def test_the_study_of_learning_is_fair(self) -> None:
        for name in comparing.GROUPS["learning"]:
            configs = list(comparing.PRESETS[name].configs())
            assert {c.method for c in configs} == {"ep", "adam"}
            for a, b in zip(configs[::2], configs[1::2], strict=True):
                assert a.differences(b).keys() == {"method", "loss_scale"}  # which Adam does not have


# --- Exit codes, interrupts, disks that are full, networks that are too large ---

COMMAND = [sys.executable, "-m", "pjax_command"]
ENDING_SMALL = "train --widths 1x8 --batch-size 64"
LONG = f"{ENDING_SMALL} --method adam --max-steps 100000 --check-every 50 --patience 0".split()


def start(*arguments: str | Path, shell: str = "") -> "subprocess.Popen[str]":
    """The command, after one of the shell."""
    before = ["bash", "-c", f'{shell}; exec "$@"', "-"] if shell else []
    return subprocess.Popen(
        [*before, *COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def finish(process: "subprocess.Popen[str]") -> str:
    try:
        return process.communicate(timeout=100)[0]
    finally:
        process.kill()


def wait_for(path: Path, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 100
    while not path.exists():
        assert process.poll() is None, finish(process)
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_runs_that_are_killed_end_with_the_same_bits(tmp_path: Path) -> None:
    data = kills.made_up(tmp_path / "data")
    assert kills.run(kills.KINDS[0], 2, 1, 3, tmp_path / "runs", data)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at what a process has mapped")
def test_an_interrupt_ends_it_at_once_and_says_how_to_go_on(tmp_path: Path) -> None:
    """While it imports, while it compiles, and while it trains."""
    folders = [tmp_path / str(i) for i in range(3)]
    importing, compiling, training = [start(*LONG, "--folder", folder) for folder in folders]
    try:
        while "jaxlib" not in Path(f"/proc/{importing.pid}/maps").read_text():
            time.sleep(0.005)
        importing.send_signal(signal.SIGINT)
        wait_for(folders[1] / "config.json", compiling)
        compiling.send_signal(signal.SIGINT)
        while last(folders[2]) is None:
            assert training.poll() is None
            time.sleep(0.01)
        training.send_signal(signal.SIGINT)
    finally:
        said = [finish(process) for process in (importing, compiling, training)]
    assert [process.returncode for process in (importing, compiling, training)] == [130, 130, 130], said
    assert said[0] == "\ninterrupted\n"
    assert not folders[0].exists()
    assert said[1] == "\ninterrupted; there was no checkpoint yet\n"
    assert said[2].endswith(f"\ninterrupted; go on with: pjax train --resume {folders[2]}\n")
    assert not any((folder / ".lock").exists() for folder in folders)


@pytest.mark.skipif(sys.platform == "win32", reason="nobody is sent this signal there")
def test_a_termination_ends_it_like_an_interrupt() -> None:
    program = (
        "import os, signal, threading; from pjax.experiments import endings; endings.listen()\n"
        "with endings.saying(lambda: 'go on so'), endings.cleaning(lambda: print('cleaned')):\n"
        "    os.kill(os.getpid(), signal.SIGTERM); threading.Event().wait(60)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (143, "cleaned\n", "\ninterrupted; go on so\n")


def test_two_at_once(tmp_path: Path) -> None:
    """The second into the same folder is refused, and a run that was killed keeps nobody out."""
    folder = tmp_path / "run"
    first = start(*LONG, "--folder", folder)
    try:
        wait_for(folder / ".lock", first)
        refused = run("train", "--folder", folder, code=2)
        assert re.search(rf"run: process {first.pid} on .* writes into it", refused)
        first.kill()
        first.wait(60)
    finally:
        finish(first)
    assert (folder / ".lock").exists()
    run(*f"{ENDING_SMALL} --method adam --max-steps 50 --check-every 50 --folder {folder}".split())
    assert not (folder / ".lock").exists()


def test_a_run_that_diverges_has_its_own_status(tmp_path: Path) -> None:
    settings = f"{ENDING_SMALL} --method sgd --learning-rate 1e30 --max-steps 100 --check-every 50".split()
    said = run(*settings, "--folder", tmp_path / "run", code=4)
    assert "diverged at 50" in said
    assert "diverged: the loss was not finite" in said
    run("train", "--resume", tmp_path / "run", code=4)


class TestDisk:
    def test_a_file_in_place_of_the_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("mine")
        for folder in (tmp_path / "file", tmp_path / "file" / "run"):
            said = run("train", "--folder", folder, code=2)
            assert re.fullmatch(r"error: \S+file\S*: (File exists|Not a directory)\. What .* kept", said)
        assert (tmp_path / "file").read_text() == "mine"

    def test_a_folder_in_place_of_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "out.csv").mkdir()
        with pytest.raises(IsADirectoryError) as caught:
            write_atomically(tmp_path / "out.csv", b"mine")
        assert caught.value.filename == str(tmp_path / "out.csv")

    @pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a folder where nobody may write")
    def test_a_folder_that_cannot_be_written(self) -> None:
        said = run("train", "--folder", "/sys/kernel/run", code=2)
        assert re.fullmatch(r"error: /sys/kernel/run: (Operation not permitted|Permission denied)\. .*", said)

    def test_a_disk_that_fills_up(self, tmp_path: Path) -> None:
        """Room for some checkpoints, but not for lines without end: what is there is kept."""
        folder = tmp_path / "run"
        settings = (
            f"{ENDING_SMALL} --method adam --max-steps 4000 --check-every 20 --patience 0 --folder {folder}"
        )
        process = start(*settings.split(), "--folder", folder, shell="ulimit -f 24")
        said = finish(process)
        assert process.returncode == 2, said
        assert re.search(rf"error: {folder}/\S+: File too large\. What was written before is kept\n$", said)
        assert "Traceback" not in said
        kept = last(folder)
        assert kept is not None
        steps = [check.step for check in train(None, folder, resume=True).checks]
        assert steps == list(range(20, 4001, 20))


def test_a_network_that_is_too_large(tmp_path: Path) -> None:
    said = run("train", "--widths", "2x3000000", "--folder", tmp_path / "run", code=2)
    assert re.fullmatch(r"error: there is not enough memory \(.+\): take smaller --widths.*", said), said
