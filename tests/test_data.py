"""Data sets: what is read, how it is split, how it is ordered, and files that are not right."""

import dataclasses
import gzip
import hashlib
import io
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import threading
import time
import tracemalloc
import zipfile

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from sklearn.datasets import load_digits

from pjax.errors import DataError, DownloadError, InputError
from pjax.experiments import data, download
from pjax.experiments.download import File
from tests.server import serving

pytestmark = pytest.mark.usefixtures("quick_compilation")

rng = np.random.default_rng(0)


def labels(n, classes=10):
    return rng.integers(0, classes, n, dtype=np.uint8)


def pixels(*shape):
    return rng.integers(0, 256, shape, dtype=np.uint8)


def arrays(name, train=40, test=10):
    """A small data set in the form in which its file has it."""
    if name == "mnist":
        x = [pixels(train, 28, 28), pixels(test, 28, 28)]
    elif name == "cifar10":
        x = [pixels(train, 32, 32, 3), pixels(test, 32, 32, 3)]
    else:
        x = [rng.normal(3, 2, (n, 28)).astype(np.float32) for n in (train, test)]
    y = [labels(n, 2 if name == "higgs" else 10) for n in (train, test)]
    return {"x_train": x[0], "y_train": y[0], "x_test": x[1], "y_test": y[1]}


TEXT = "".join("aä\nb"[i % 4] + "c" * (i % 3) for i in range(700))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PJAX_DATA", str(tmp_path))
    return tmp_path


# Where the files are


def test_the_folder_is_the_one_that_is_set(monkeypatch, tmp_path):
    monkeypatch.setenv("PJAX_DATA", str(tmp_path))
    assert data.folder() == tmp_path
    assert data.path("mnist") == tmp_path / "mnist.npz"
    monkeypatch.setenv("PJAX_DATA", "~/data")
    assert data.folder() == data.Path.home() / "data"


def test_the_folder_is_in_the_users_cache_otherwise(monkeypatch, tmp_path):
    monkeypatch.setenv("PJAX_DATA", "")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data.folder() == tmp_path / "pjax"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data.folder().as_posix() == "/home/me/.cache/pjax"


@pytest.mark.parametrize("call", [data.load, data.get, data.path])
def test_a_misspelt_name(call):
    with pytest.raises(InputError, match=r"data must be one of .* got 'minst'. Did you mean 'mnist'"):
        call("minst")
    with pytest.raises(InputError, match="one of digits, mnist, cifar10, higgs, shakespeare; got 'zebra'"):
        call("zebra")


@pytest.mark.parametrize("name", [n for n in data.names() if n != "digits"])
def test_a_missing_file(folder, name):
    file = folder / data.path(name).name
    with pytest.raises(DataError, match=f"no {file}: run `pjax data get {name}`, or put it there"):
        data.load(name)


# What is read


def test_the_digits_are_those_of_always(folder):
    digits = data.load("digits")
    parts = [getattr(digits, f"{a}_{b}") for b in ("train", "val", "test") for a in "xy"]
    assert [p.shape[0] for p in parts] == [1294, 1294, 143, 143, 360, 360]
    assert digits.input_shape == (8, 8, 1)
    assert (digits.x_train.dtype, digits.y_train.dtype) == (np.uint8, np.int32)
    # The split is part of what an accuracy means: it must not change with a version of anything.
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(p).astype("<i4").tobytes() for p in parts))
    assert digest.hexdigest() == "f18895a65c64ba0c4104421823ae9f736de290998031e726236b4c2c17899749"
    assert list(folder.iterdir()) == []


def test_the_parts_of_the_digits_are_all_of_them():
    digits = data.load("digits")
    images = load_digits().images.astype(np.uint8)
    parts = np.concatenate([digits.x_train, digits.x_val, digits.x_test])[..., 0]
    assert sorted(map(bytes, parts)) == sorted(map(bytes, images))


@pytest.mark.parametrize("name", ["mnist", "cifar10", "higgs"])
def test_a_file_put_there_by_hand(folder, name):
    stored = arrays(name)
    np.savez(folder / f"{name}.npz", **stored, more=np.zeros(3))
    loaded = data.load(name)
    assert data.get(name) == data.path(name) == folder / f"{name}.npz"
    assert (len(loaded.x_train), len(loaded.x_val), len(loaded.x_test)) == (36, 4, 10)
    assert loaded.classes == (2 if name == "higgs" else 10)
    assert loaded.kind == ("table" if name == "higgs" else "image")
    assert loaded.x_train.dtype == stored["x_train"].dtype
    assert loaded.y_train.dtype == loaded.y_val.dtype == loaded.y_test.dtype == np.int32
    # Every row is in one part, with its label, and the test rows stay as they are.
    pairs = {(x.tobytes(), int(y)) for x, y in zip(stored["x_train"], stored["y_train"], strict=True)}
    found = [*zip(loaded.x_train, loaded.y_train, strict=True), *zip(loaded.x_val, loaded.y_val, strict=True)]
    assert {(x.tobytes(), int(y)) for x, y in found} == pairs
    assert loaded.x_test.tobytes() == stored["x_test"].tobytes()
    assert (loaded.y_test == stored["y_test"]).all()


def test_loading_twice_gives_the_same(folder):
    np.savez(folder / "mnist.npz", **arrays("mnist"))
    one, two = data.load("mnist"), data.load("mnist")
    for field in dataclasses.fields(one):
        assert np.array_equal(getattr(one, field.name), getattr(two, field.name))


def test_rows_to_validate_with_do_not_depend_on_the_data():
    def rows(n):
        index = np.arange(n)
        split = data._rows("higgs", dict.fromkeys(["x_train", "y_train", "x_test", "y_test"], index))
        return split.x_train, split.x_val

    train, val = rows(1000)
    assert (len(train), len(val)) == (900, 100)
    assert np.array_equal(np.sort(np.concatenate([train, val])), np.arange(1000))
    assert val[:6].tolist() == [15, 74, 79, 84, 96, 101]
    assert 400 < val.mean() < 600
    assert [len(part) for part in rows(2)] == [1, 1]
    assert [len(part) for part in rows(19)] == [18, 1]


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "10", 2**63])
def test_a_length_that_cannot_be(value):
    with pytest.raises(InputError, match="sequence_length must be a whole number of at least 1"):
        data.load("digits", sequence_length=value)


def test_a_text_is_cut_into_windows(folder):
    (folder / "shakespeare.txt").write_text(TEXT, encoding="utf-8", newline="")
    text = data.load("shakespeare", sequence_length=7)
    assert data.path("shakespeare") == data.get("shakespeare") == folder / "shakespeare.txt"
    assert text.characters == "\nabcä"
    assert text.classes == 5
    assert text.input_shape == (7,)
    assert text.x_train.dtype == text.y_test.dtype == np.int32
    codes = np.array([text.characters.index(c) for c in TEXT])
    end = len(codes) * 4 // 5
    pieces = {"train": codes[: end - end // 10], "val": codes[end - end // 10 : end], "test": codes[end:]}
    for part, piece in pieces.items():
        x, y = getattr(text, f"x_{part}"), getattr(text, f"y_{part}")
        assert x.shape == y.shape == ((len(piece) - 1) // 7, 7)
        assert np.array_equal(x.ravel(), piece[: x.size])
        assert np.array_equal(y.ravel(), piece[1 : x.size + 1])
    assert text.normalise(text.x_train) is text.x_train


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_what_the_network_sees(folder, kind):
    digits = data.load("digits")
    seen = digits.normalise(kind(digits.x_train))
    assert seen.dtype == np.float32
    np.testing.assert_allclose([np.mean(seen), np.std(seen)], [0, 1], atol=1e-5)
    np.savez(folder / "cifar10.npz", **arrays("cifar10"))
    cifar10 = data.load("cifar10")
    x = np.asarray(cifar10.x_train, float)
    expected = (cifar10.x_val - x.mean((0, 1, 2))) / x.std((0, 1, 2))
    np.testing.assert_allclose(cifar10.normalise(kind(cifar10.x_val)), expected, rtol=1e-4, atol=1e-5)
    stored = arrays("higgs", 400)
    stored["x_train"][:, 3] = 5
    np.savez(folder / "higgs.npz", **stored)
    higgs = data.load("higgs")
    seen = np.asarray(higgs.normalise(kind(higgs.x_train)))
    assert seen.dtype == np.float32
    np.testing.assert_allclose(seen.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(seen.std(0), np.arange(28) != 3, atol=1e-5)
    np.testing.assert_allclose(higgs.shift, higgs.x_train.mean(0, dtype=float), rtol=1e-6)


@pytest.mark.parametrize("name", ["mnist", "higgs"])
def test_jax_sees_what_numpy_sees(folder, name):
    np.savez(folder / f"{name}.npz", **arrays(name))
    loaded = data.load(name)
    expected = loaded.normalise(loaded.x_train)
    assert np.array_equal(loaded.normalise(jnp.asarray(loaded.x_train)), expected)
    assert np.array_equal(jax.jit(loaded.normalise)(loaded.x_train), expected)


def test_moments_of_many_rows_are_those_of_all():
    x = rng.normal(1e3, 1e-1, (250_001, 2)).astype(np.float32)
    mean, deviation = data.moments(x)
    np.testing.assert_allclose(mean, x.mean(0, dtype=np.float64), rtol=1e-7)
    np.testing.assert_allclose(deviation, x.std(0, dtype=np.float64), rtol=1e-6)


@pytest.mark.parametrize("value", [0.1, 123.456, -7.7])
def test_a_column_of_one_value_is_not_scaled(value):
    """Its mean is not quite it, and rows that come later may have another."""
    _, deviation = data.moments(np.full((1000, 1), value))
    assert deviation == 1


# Files that are not right


def bad(change):
    return lambda stored: {**stored, **change(stored)}


BAD = {
    "no y_test": (
        "mnist",
        lambda s: {k: v for k, v in s.items() if k != "y_test"},
        r"lacks y_test.* got x_train",
    ),
    "empty": ("mnist", lambda _: {}, r"lacks x_train, y_train, x_test, y_test.* got none"),
    "flat": (
        "mnist",
        bad(lambda s: {"x_train": s["x_train"].reshape(40, 784)}),
        r"x_train is uint8 of shape \(40, 784\), expected uint8 of shape \(n, 28, 28\) or \(n, 28, 28, 1\)",
    ),
    "scalar": ("mnist", bad(lambda _: {"x_test": np.uint8(3)}), r"x_test is uint8 of shape \(\)"),
    "channels first": (
        "cifar10",
        bad(lambda s: {"x_test": s["x_test"].transpose(0, 3, 1, 2)}),
        r"shape \(10, 3, 32, 32\), expected uint8 of shape \(n, 32, 32, 3\)",
    ),
    "27 features": (
        "higgs",
        bad(lambda s: {"x_test": s["x_test"][:, 1:]}),
        r"shape \(10, 27\), expected float of shape \(n, 28\)",
    ),
    "float pixels": (
        "mnist",
        bad(lambda s: {"x_test": s["x_test"] / 255}),
        "x_test is float64 .* expected uint8",
    ),
    "whole features": (
        "higgs",
        bad(lambda s: {"x_test": s["x_test"].astype(int)}),
        "x_test is int64 .* expected float",
    ),
    "no rows": (
        "mnist",
        bad(lambda s: {"x_test": s["x_test"][:0], "y_test": s["y_test"][:0]}),
        r"x_test is uint8 of shape \(0, .* with at least 1 rows",
    ),
    "one row": (
        "mnist",
        bad(lambda s: {"x_train": s["x_train"][:1], "y_train": s["y_train"][:1]}),
        r"x_train is uint8 of shape \(1, .* with at least 2 rows",
    ),
    "lost label": (
        "mnist",
        bad(lambda s: {"y_train": s["y_train"][1:]}),
        r"y_train is uint8 of shape \(39,\), expected whole numbers of shape \(40,\)",
    ),
    "one hot": (
        "mnist",
        bad(lambda s: {"y_train": np.eye(10, dtype=int)[s["y_train"]]}),
        r"y_train is int64 of shape \(40, 10\), expected whole numbers of shape \(40,\)",
    ),
    "float labels": (
        "higgs",
        bad(lambda s: {"y_test": s["y_test"].astype(float)}),
        "y_test is float64 .* expected whole numbers",
    ),
    "label 10": (
        "mnist",
        bad(lambda s: {"y_test": s["y_test"] * 0 + 10}),
        "y_test has labels from 10 to 10, expected 0 to 9",
    ),
    "label -1": (
        "higgs",
        bad(lambda s: {"y_test": s["y_test"].astype(int) - 1}),
        "labels from -1 to 0, expected 0 to 1",
    ),
    "NaN": (
        "higgs",
        bad(lambda s: {"x_test": np.where(np.arange(10)[:, None] == 7, np.nan, s["x_test"])}),
        "finite numbers, row 7 has another",
    ),
    "1e300": (
        "higgs",
        bad(lambda s: {"x_train": s["x_train"] + np.where(np.arange(40)[:, None] == 3, 1e300, 0)}),
        "finite numbers, row 3 has another",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_with_the_wrong_arrays(folder, case):
    name, change, message = BAD[case]
    np.savez(folder / f"{name}.npz", **change(arrays(name)))
    with pytest.raises(DataError, match=message) as caught:
        data.load(name)
    assert str(folder / f"{name}.npz") in str(caught.value)
    with pytest.raises(DataError, match=message):
        data.get(name)  # it does not replace a file that somebody has put there


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (b"", "the train part of the text has 0 characters"),
        (b"\xff" * 900, r"shakespeare.txt cannot be read: expected .* in UTF-8"),
        (b"short" * 40, "the val part of the text has 16 characters, too few for a window of 64"),
    ],
)
def test_a_text_that_is_none(folder, stored, message):
    (folder / "shakespeare.txt").write_bytes(stored)
    with pytest.raises(DataError, match=message):
        data.load("shakespeare")


def damaged(kind):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays("mnist"))
    whole = bytearray(file.getvalue())
    if kind == "cut off":
        return bytes(whole[: len(whole) // 2])
    if kind == "overwritten":
        whole[len(whole) // 3 : len(whole) // 2] = bytes(len(whole) // 2 - len(whole) // 3)
        return bytes(whole)
    if kind == "of objects":
        file = io.BytesIO()
        np.savez(file, x_train=np.array([{}, []], dtype=object))
        return file.getvalue()
    if kind == "of no arrays":
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for key in arrays("mnist"):
                archive.writestr(f"{key}.npy", b"cats")
        return file.getvalue()
    return {"nothing": b"", "a page": b"<html>" * 99}[kind]


KINDS = ["cut off", "overwritten", "of objects", "of no arrays", "nothing", "a page"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_damaged(folder, kind):
    (folder / "mnist.npz").write_bytes(damaged(kind))
    with pytest.raises(
        DataError, match=r"cannot be read: .+ Remove it and run `pjax data get mnist`"
    ) as caught:
        data.load("mnist")
    assert str(folder / "mnist.npz") in str(caught.value)


def test_one_array_in_place_of_several(folder):
    with (folder / "mnist.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match=r"lacks x_train.* Remove it and run `pjax data get mnist`"):
        data.load("mnist")


def test_a_folder_in_place_of_a_file(folder):
    (folder / "mnist.npz").mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        data.load("mnist")


def npy(shape, dtype="|u1"):
    """The beginning of a file that says it has an array of this shape."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def bomb(path, shape, zeros):
    """An archive whose first array has so many zeros: a thousandth of it on the disk."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("x_train.npy", "w") as member:
            member.write(npy(shape))
            for _ in range(zeros // len(ZEROS)):
                member.write(ZEROS)
        for key in ("y_train", "x_test", "y_test"):
            archive.writestr(f"{key}.npy", npy((1,)) + b"\0")


ZEROS = bytes(1 << 20)


@pytest.mark.parametrize("shape", [(2**26, 28, 28), (100, 28, 28)], ids=["declared", "hidden"])
def test_an_archive_that_unpacks_to_more_than_it_should_is_not_unpacked(folder, shape, monkeypatch):
    monkeypatch.setattr(data, "_MOST", 30 << 20)
    bomb(folder / "mnist.npz", shape, 64 << 20)
    tracemalloc.start()
    with pytest.raises(DataError, match=r"unpacks to .* bytes, at most 31,457,280"):
        data.load("mnist")
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_data_sets_may_be_as_large_as_they_are_published():
    assert data._MOST / 2 > 11_000_000 * 29 * 4  # that of HIGGS
    assert data._MOST <= 3 << 30


def test_a_text_that_is_too_long_is_not_read(folder):
    with open(folder / "shakespeare.txt", "wb") as file:
        file.truncate(1 << 40)  # without taking room
    with pytest.raises(DataError, match=r"1,099,511,627,776 bytes, at most"):
        data.load("shakespeare")


@pytest.mark.parametrize(("name", "file"), [("mnist", "mnist.npz"), ("shakespeare", "shakespeare.txt")])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(folder, name, file):
    os.mkfifo(folder / file)
    with pytest.raises(DataError, match=rf"{file} cannot be read: it is no ordinary file"):
        data.load(name)


def test_counting_bytes_does_not_copy_them_all():
    x = pixels(20_000, 28, 28, 1)
    tracemalloc.start()
    mean, deviation = data.moments(x.reshape(-1, 1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.nbytes
    assert mean == pytest.approx(x.mean(), rel=1e-12)
    assert deviation == pytest.approx(x.std(), rel=1e-12)


# Official files


def idx(array):
    return struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


MNIST_FILES = {
    "x_train": "train-images-idx3-ubyte.gz",
    "y_train": "train-labels-idx1-ubyte.gz",
    "x_test": "t10k-images-idx3-ubyte.gz",
    "y_test": "t10k-labels-idx1-ubyte.gz",
}


def cifar_batches(stored):
    rows = {
        part: np.concatenate(
            [
                stored[f"y_{part}"][:, None],
                stored[f"x_{part}"].transpose(0, 3, 1, 2).reshape(-1, 3072),
            ],
            1,
        )
        for part in ("train", "test")
    }
    parts = np.split(rows["train"], 5)
    return {f"data_batch_{i}.bin": p.tobytes() for i, p in enumerate(parts, 1)} | {
        "test_batch.bin": rows["test"].tobytes(),
        "readme.html": b"<html>",
    }


def tar(members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def csv(stored):
    return "".join(
        ",".join(f"{v:.18e}" for v in (y, *x)) + "\n"
        for part in ("train", "test")
        for x, y in zip(stored[f"x_{part}"], stored[f"y_{part}"], strict=True)
    ).encode()


def official(name, stored):
    """The data set as its official files, by name."""
    if name == "mnist":
        return {file: gzip.compress(idx(stored[key])) for key, file in MNIST_FILES.items()}
    if name == "cifar10":
        return {"cifar-10-binary.tar.gz": tar(cifar_batches(stored))}
    if name == "higgs":
        return {"HIGGS.csv.gz": gzip.compress(csv(stored))}
    return {"input.txt": TEXT.encode()}


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(data, "_HIGGS_TEST", 10)
    with serving() as server:
        yield server


def source(server, name, files):
    """The official source as it is, but small and on another server."""
    server.files.update(files)
    assert [file.name for file in data.official_files(name)] == list(files)
    return [File((server.url(f),), hashlib.sha256(body).hexdigest(), len(body)) for f, body in files.items()]


@pytest.mark.parametrize("name", ["mnist", "cifar10", "higgs"])
def test_official_files_become_a_data_set(folder, server, name):
    stored, seen = arrays(name), []
    found = source(server, name, official(name, stored))
    assert data.get(name, files=found, progress=lambda *what: seen.append(what)) == folder / f"{name}.npz"
    assert [p.name for p in folder.iterdir()] == [f"{name}.npz"]
    with np.load(folder / f"{name}.npz") as file:
        for key, array in stored.items():
            assert file[key].dtype == array.dtype
            assert np.array_equal(file[key], array)
    assert len(data.load(name).x_train) == 36
    assert {what for _, _, what in seen} >= set(official(name, stored))
    if name == "higgs":
        assert seen[-1][2] == "reading HIGGS.csv.gz"
    server.requests.clear()
    data.get(name, files=found)
    assert server.requests == []


def test_the_official_text_becomes_a_data_set(folder, server):
    found = source(server, "shakespeare", official("shakespeare", None))
    assert data.get("shakespeare", files=found) == folder / "shakespeare.txt"
    assert data.load("shakespeare", sequence_length=5).characters == "\nabcä"
    assert (folder / "shakespeare.txt").read_bytes() == TEXT.encode()


def test_there_is_an_official_source_for_all_but_the_digits(folder):
    for files in (data.official_files(name) for name in data.names() if name != "digits"):
        assert len({file.name for file in files}) == len(files) > 0
        for file in files:
            assert all(url.startswith("https://") and url.endswith(f"/{file.name}") for url in file.urls)
            assert len(bytes.fromhex(file.sha256)) == 32
            assert file.size > 0
    assert data.get("digits") == data.path("digits")
    assert list(folder.iterdir()) == []


# Downloads of data sets


def test_an_interrupted_download_is_continued(folder, server):
    stored = arrays("mnist")
    found = source(server, "mnist", official("mnist", stored))
    server.faults = [("", None), ("", None), ("drop", 1000)]
    with pytest.raises(DownloadError, match=r"t10k-images.* could not be downloaded.* after 1000 of"):
        data.get("mnist", files=found, tries=1)
    assert not (folder / "mnist.npz").exists()
    server.requests.clear()
    data.get("mnist", files=found)
    assert server.requests == [(MNIST_FILES["x_test"], "bytes=1000-"), (MNIST_FILES["y_test"], None)]
    with np.load(folder / "mnist.npz") as file:
        assert np.array_equal(file["x_test"], stored["x_test"])


def test_a_file_fetched_by_other_means_is_used(folder, server):
    files = official("higgs", arrays("higgs"))
    found = source(server, "higgs", files)
    server.faults = [("status", 403)]
    with pytest.raises(
        DownloadError, match=f"403 .* fetch the file by other means to {folder}/higgs.download/HIGGS"
    ):
        data.get("higgs", files=found)
    (folder / "higgs.download" / "HIGGS.csv.gz").write_bytes(files["HIGGS.csv.gz"])
    server.faults = [("status", 403)]
    data.get("higgs", files=found)
    assert [p.name for p in folder.iterdir()] == ["higgs.npz"]


def test_a_wrong_digest_leaves_no_data_set(folder, server):
    found = source(server, "shakespeare", official("shakespeare", None))
    server.files["input.txt"] = TEXT.encode()[::-1]
    with pytest.raises(DownloadError, match="SHA-256"):
        data.get("shakespeare", files=found)
    assert list(folder.rglob("*.*")) == [folder / "shakespeare.download"]


def test_a_disk_that_fills_up_while_the_data_set_is_written(folder, server, monkeypatch):
    stored = arrays("mnist")
    found = source(server, "mnist", official("mnist", stored))

    def savez(file, **_):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(data.np, "savez", savez)
        with pytest.raises(DownloadError, match=r"mnist\.npz could not be written: the disk is full"):
            data.get("mnist", files=found)
    assert [p.name for p in folder.glob("**/*") if "npz" in p.name] == []
    server.requests.clear()
    data.get("mnist", files=found)
    assert server.requests == []  # the files were kept
    assert [p.name for p in folder.iterdir()] == ["mnist.npz"]


def test_a_disk_without_room_for_the_data_set(folder, server, monkeypatch):
    found = source(server, "shakespeare", official("shakespeare", None))
    free = iter([10**9, 100])
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: usage._replace(free=next(free)))
    with pytest.raises(DownloadError, match=f"^{folder} has 100 bytes left"):
        data.get("shakespeare", files=found)
    assert not (folder / "shakespeare.txt").exists()


def test_a_folder_that_cannot_be_made(tmp_path, server, monkeypatch):
    found = source(server, "shakespeare", official("shakespeare", None))
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("PJAX_DATA", str(tmp_path / "file" / "folder"))
    with pytest.raises(DownloadError, match="Set PJAX_DATA to a folder that you may write to"):
        data.get("shakespeare", files=found)


def test_several_downloads_at_once_are_one(folder, server, monkeypatch):
    stored, results = arrays("mnist"), []
    found = source(server, "mnist", official("mnist", stored))
    server.faults = [("drop", 1000), ("drop", 1000)]
    sleep = time.sleep
    monkeypatch.setattr(download.time, "sleep", lambda _: sleep(0.01))

    def work():
        results.append(data.get("mnist", files=found))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == [folder / "mnist.npz"] * 4
    assert len(server.requests) == 6  # four files, two of them in two pieces or one in three
    assert len(data.load("mnist").x_train) == 36


def test_two_processes_at_once(folder, server):
    files = official("mnist", arrays("mnist"))
    source(server, "mnist", files)
    digests = [(server.url(n), hashlib.sha256(b).hexdigest(), len(b)) for n, b in files.items()]
    code = (
        "from pjax.experiments import data\n"
        f"print(data.get('mnist', files=[data.File((u,), d, n) for u, d, n in {digests!r}]))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert outputs == [str(folder / "mnist.npz")] * 2
    assert len(server.requests) == 4
    assert [p.name for p in folder.iterdir()] == ["mnist.npz"]


# The order of the rows


def test_the_order_stays_what_it_is():
    # Runs are continued bit for bit, perhaps with other versions of everything.
    assert data.order(0, 0, 10).tolist() == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]
    assert data.order(3, 5, 10).tolist() == [0, 6, 2, 1, 3, 4, 7, 8, 5, 9]
    assert data.order(0, 0, 0).tolist() == []
    digest = hashlib.sha256(data.order(1, 2, 54_000).astype("<i4").tobytes()).hexdigest()
    assert digest == "8d6d19fd3d725b609e04aa649bed4ff68eceee64c7b2a3ba5234759b442afb67"


def test_orders_differ_by_seed_and_epoch():
    orders = {data.order(seed, epoch, 50).tobytes() for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_an_order_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        data.order(0, 0, 10)[0] = 1


def test_every_place_is_as_likely():
    places = np.array([data.order(seed, 0, 5) for seed in range(2000)])
    counts = np.array([np.bincount(column, minlength=5) for column in places.T])
    assert abs(counts - 400).max() < 5 * np.sqrt(400 * 0.8)


sizes = st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@settings(deadline=None, max_examples=100)
@given(sizes, st.integers(0, 2**63 - 1), st.integers(0, 200), st.integers(0, 50))
def test_batches_are_slices_of_one_sequence(size, seed, start, count):
    n, batch = size
    rows = data.batches(seed, start, count, n, batch)
    assert rows.shape == (count, batch)
    assert rows.dtype == np.int32
    for i in range(count):
        assert np.array_equal(rows[i], data.batches(seed, start + i, 1, n, batch)[0])


@settings(deadline=None, max_examples=50)
@given(sizes, st.integers(0, 2**63 - 1), st.integers(0, 1000))
def test_an_epoch_sees_each_row_at_most_once(size, seed, epoch):
    n, batch = size
    per_epoch = n // batch
    rows = data.batches(seed, epoch * per_epoch, per_epoch, n, batch)
    assert np.array_equal(rows.ravel(), data.order(seed, epoch, n)[: per_epoch * batch])
    assert len(set(rows.ravel().tolist())) == rows.size
    assert rows.min() >= 0
    assert rows.max() < n


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0, 1, 5, 6), "batch_size is 6, but there are only 5 rows: take 5 or less"),
        ((-1, 0, 1, 5, 2), "seed must be"),
        ((2**63, 0, 1, 5, 2), "seed must be"),
        ((0, -1, 1, 5, 2), "start must be"),
        ((0, 0, -1, 5, 2), "count must be"),
        ((0, 0, 1, 0, 2), "n must be"),
        ((0, 0, 1, 2**31, 2), "n must be"),
        ((0, 0, 1, 5, 0), "batch_size must be"),
        ((0, 0, 1, 5, 2.5), "batch_size must be"),
        ((True, 0, 1, 5, 2), "seed must be"),
    ],
)
def test_batches_that_cannot_be(arguments, message):
    with pytest.raises(InputError, match=message):
        data.batches(*arguments)
