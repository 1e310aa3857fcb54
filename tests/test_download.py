"""Downloads from a server that misbehaves: what arrives is right or nothing, and errors say what to do."""

import errno
import hashlib
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from pjax.errors import DownloadError
from pjax.experiments import download
from pjax.experiments.download import Download, File, locked, on_disk
from pjax.tools.files import replacing
from tests.server import serving

BODY = hashlib.shake_256(b"body").digest(300_000)
OTHER = hashlib.shake_256(b"other").digest(300_000)


def sha(body):
    return hashlib.sha256(body).hexdigest()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def server():
    with serving() as server:
        server.files["file.bin"] = BODY
        yield server


@pytest.fixture
def target(tmp_path):
    return tmp_path / "folder" / "file.bin"


def fetch(urls, target, *, sha256, size, **options):
    return Download(File(tuple(urls), sha256, size), target, **options).fetch()


def get(server, target, body=BODY, **options):
    options = {"sha256": sha(body), "size": len(body), "timeout": 5.0, "pause": 0.0, **options}
    with on_disk(target):
        return fetch([server.url("file.bin")], target, **options)


def left(target):
    return sorted(p.name for p in target.parent.iterdir())


def stop_after(server, target, n):
    """A first run that ends after n bytes."""
    server.faults = [("drop", n)]
    with pytest.raises(DownloadError, match=f"the connection ended after {n} of 300000 bytes"):
        get(server, target, tries=1)
    assert left(target) == ["file.bin.part"]
    server.requests.clear()


def test_a_file_arrives_and_nothing_else(server, target):
    seen = []
    assert get(server, target, progress=lambda *what: seen.append(what)) == target
    assert target.read_bytes() == BODY
    assert left(target) == ["file.bin"]
    done = [d for d, _, _ in seen]
    assert done == sorted(done)
    assert (seen[0][0], seen[-1]) == (0, (300_000, 300_000, "file.bin"))


def test_a_file_that_is_there_is_not_downloaded_again(server, target):
    get(server, target)
    get(server, target)
    assert len(server.requests) == 1


def test_a_file_that_is_there_and_wrong_is_replaced(server, target):
    target.parent.mkdir()
    target.write_bytes(BODY[:-1])
    get(server, target)
    assert target.read_bytes() == BODY


@pytest.mark.parametrize("fault", ["drop", "reset"])
def test_a_broken_connection_is_continued(server, target, fault):
    server.faults = [(fault, 100_000), (fault, 50_000)]
    get(server, target, tries=2)  # each try gets further, so that two in a row are enough
    assert target.read_bytes() == BODY
    first, *others = server.ranges()
    assert first is None
    assert len(others) == 2
    if fault == "drop":  # a reset may take with it what was under way
        assert others == ["bytes=100000-", "bytes=150000-"]


def test_a_later_run_goes_on_where_the_first_stopped(server, target):
    stop_after(server, target, 120_000)
    seen = []
    get(server, target, progress=lambda *what: seen.append(what))
    assert server.ranges() == ["bytes=120000-"]
    assert seen[0] == (120_000, 300_000, "file.bin")
    assert target.read_bytes() == BODY
    assert left(target) == ["file.bin"]


def test_a_part_that_is_whole_needs_no_request(server, target):
    stop_after(server, target, 120_000)
    target.with_name("file.bin.part").write_bytes(BODY)
    get(server, target)
    assert server.requests == []
    assert target.read_bytes() == BODY


def test_a_part_that_is_too_long_is_dropped(server, target):
    stop_after(server, target, 120_000)
    target.with_name("file.bin.part").write_bytes(BODY + b"!")
    get(server, target)
    assert server.ranges() == [None]
    assert target.read_bytes() == BODY


def test_a_server_that_sends_it_all_again_is_understood(server, target):
    stop_after(server, target, 120_000)
    server.knows_ranges = False
    get(server, target)
    assert server.ranges() == ["bytes=120000-"]
    assert target.read_bytes() == BODY


def test_a_server_that_never_gets_further_is_given_up(server, target):
    server.knows_ranges = False
    server.faults = [("drop", 1000)] * 10
    with pytest.raises(DownloadError, match=r"after 1000 of 300000 bytes \(3 tries\)"):
        get(server, target, tries=3)
    assert server.ranges() == [None, "bytes=1000-", "bytes=1000-"]


def test_a_file_that_was_patched_together_is_downloaded_again(server, target):
    stop_after(server, target, 120_000)
    server.files["file.bin"] = OTHER
    get(server, target, OTHER)
    assert target.read_bytes() == OTHER
    assert server.ranges() == ["bytes=120000-", None]


@pytest.mark.parametrize("length", [50_000, 299_999, 300_001])
def test_a_file_whose_length_has_changed_is_not_patched_together(server, target, length):
    stop_after(server, target, 120_000)
    server.files["file.bin"] = longer = (BODY + b"!")[:length]
    get(server, target, longer)
    assert target.read_bytes() == longer


def test_the_next_address_goes_on_with_what_the_first_has_sent(server, target):
    with serving() as mirror:
        mirror.files["file.bin"] = BODY
        server.faults = [("drop", 120_000), ("status", 404)]
        urls = [server.url("file.bin"), mirror.url("file.bin")]
        fetch(urls, target, sha256=sha(BODY), size=len(BODY), pause=0.0)
        assert mirror.ranges() == ["bytes=120000-"]
    assert target.read_bytes() == BODY


def test_a_wrong_digest_is_an_error_that_names_both(server, target):
    with pytest.raises(DownloadError, match=f"{sha(BODY)}, expected {sha(OTHER)}"):
        get(server, target, OTHER)
    assert left(target) == []
    assert len(server.requests) == 1


def test_a_wrong_digest_after_continuing_leaves_nothing_to_continue(server, target):
    stop_after(server, target, 120_000)
    target.with_name("file.bin.part").write_bytes(OTHER[:120_000])
    with pytest.raises(DownloadError, match="SHA-256"):
        get(server, target, tries=1)
    assert left(target) == []
    get(server, target)
    assert target.read_bytes() == BODY


def test_a_dead_link_is_not_tried_again(server, target):
    with pytest.raises(DownloadError, match="the server answered 404 Not Found") as caught:
        fetch([server.url("gone.bin")], target, sha256=sha(BODY), size=len(BODY), pause=0.0)
    assert len(server.requests) == 1
    assert server.url("gone.bin") in str(caught.value)
    assert "try again" in str(caught.value)
    assert left(target) == []


def test_a_server_in_trouble_is_tried_again(server, target):
    server.faults = [("status", 500), ("status", 503), ("status", 429)]
    get(server, target)
    assert target.read_bytes() == BODY
    server.faults = [("status", 500)] * 9
    server.requests.clear()
    with pytest.raises(DownloadError, match=r"the server answered 500 .* \(3 tries\)"):
        get(server, target.with_name("again.bin"), tries=3)
    assert len(server.requests) == 3


def test_pauses_grow(server, target, monkeypatch):
    pauses = []
    monkeypatch.setattr(download.time, "sleep", pauses.append)
    server.faults = [("status", 500)] * 9
    with pytest.raises(DownloadError):
        get(server, target, tries=4, pause=1.0)
    assert pauses == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("sent", [0, 5_000])
def test_a_silent_server_is_not_waited_for_for_ever(server, target, sent):
    server.faults = [("stall", sent)] * 4
    begin = time.monotonic()
    with pytest.raises(DownloadError, match=r"no answer within 0\.2 seconds"):
        get(server, target, timeout=0.2, tries=1)
    assert time.monotonic() - begin < 5


FAILURES = {
    "mute": r"no answer within 0\.2 seconds",
    "hang up": r"reset by peer",
}


@pytest.mark.parametrize("fault", FAILURES)
def test_a_server_that_says_nothing_is_tried_again(server, target, fault):
    server.faults = [(fault, None)]
    get(server, target, timeout=0.2, tries=2)
    assert target.read_bytes() == BODY
    assert len(server.requests) == 2


@pytest.mark.parametrize("fault", FAILURES)
def test_a_server_that_never_says_anything_is_given_up_for_the_next(server, target, fault):
    with serving() as mirror:
        mirror.files["file.bin"] = BODY
        server.faults = [(fault, None)] * 4
        urls = [server.url("file.bin"), mirror.url("file.bin")]
        fetch(urls, target, sha256=sha(BODY), size=len(BODY), timeout=0.2, pause=0.0, tries=2)
        assert (len(server.requests), len(mirror.requests)) == (2, 1)
    assert target.read_bytes() == BODY
    with pytest.raises(DownloadError, match=FAILURES[fault] + r" \(2 tries\)"):
        get(server, target.with_name("x"), timeout=0.2, tries=2)


@pytest.mark.parametrize("fault", [("to", "http://[half/file.bin"), ("length", "\xb2")])
def test_nonsense_in_a_header_is_an_error_of_this_address(server, target, fault):
    with serving() as mirror:
        mirror.files["file.bin"] = BODY
        server.faults = [fault] * 4
        urls = [server.url("file.bin"), mirror.url("file.bin")]
        fetch(urls, target, sha256=sha(BODY), size=len(BODY), timeout=0.5, pause=0.0, tries=1)
    assert target.read_bytes() == BODY


def test_nobody_there(target):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but it does not listen
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/file.bin"
        with pytest.raises(DownloadError, match=r"refused \(2 tries\)") as caught:
            fetch([url], target, sha256=sha(BODY), size=len(BODY), pause=0.0, tries=2)
    assert url in str(caught.value)


def test_no_such_host(target):
    with pytest.raises(DownloadError, match=r"host\.invalid"):
        fetch(["http://host.invalid/file.bin"], target, sha256=sha(BODY), size=len(BODY), tries=1)


def test_an_address_that_speaks_something_else(target):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)

        def answer():
            with listener.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(b"220 mail here\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/file.bin"
        with pytest.raises(DownloadError, match="220 mail here"):
            fetch([url], target, sha256=sha(BODY), size=len(BODY), tries=1, timeout=5)
        thread.join(5)


def test_a_file_of_another_length_is_refused_at_once(server, target):
    with pytest.raises(DownloadError, match="offers 300000 bytes, expected 300001"):
        get(server, target, size=300_001)
    assert left(target) == []


def test_a_file_whose_length_is_not_said(server, target):
    server.faults = [("no length", 300_000)]
    get(server, target)
    assert target.read_bytes() == BODY


def test_a_file_that_ends_early_without_saying_so(server, target):
    server.faults = [("no length", 1000)]
    with pytest.raises(DownloadError, match="after 1000 of 300000 bytes"):
        get(server, target, tries=1)
    get(server, target)
    assert target.read_bytes() == BODY


def test_redirects_are_followed(server, target):
    server.files["elsewhere.bin"] = b""
    server.faults = [("drop", 1000), ("redirect", "file.bin")]
    get(server, target)
    assert target.read_bytes() == BODY
    assert server.requests[1:] == [("file.bin", "bytes=1000-")] * 2


def test_the_next_address_is_tried(server, target):
    urls = [server.url("gone.bin"), server.url("wrong.bin"), server.url("file.bin")]
    server.files["wrong.bin"] = OTHER
    fetch(urls, target, sha256=sha(BODY), size=len(BODY), pause=0.0)
    assert target.read_bytes() == BODY
    assert [name for name, _ in server.requests] == ["gone.bin", "wrong.bin", "file.bin"]
    with pytest.raises(DownloadError, match=r"gone\.bin: .*404.*wrong\.bin: .*SHA-256"):
        fetch(urls[:2], target.with_name("x"), sha256=sha(BODY), size=len(BODY), pause=0.0)


class FullDisk:
    """A file that holds 1000 bytes."""

    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, block):
        if self.file.tell() + len(block) > 1000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(block)


@pytest.fixture
def full_disk(monkeypatch):
    real = pathlib.Path.open

    def open_(path, mode="r", *arguments, **options):
        file = real(path, mode, *arguments, **options)
        return FullDisk(file) if "b" in mode and mode != "rb" else file

    monkeypatch.setattr(pathlib.Path, "open", open_)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_is_an_error_and_leaves_no_file(server, target):
    with pytest.raises(DownloadError, match=r"the disk is full.*PJAX_DATA"):
        get(server, target)
    assert not target.exists()
    assert len(server.requests) == 1  # no use in trying again


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write():
        with on_disk(path), replacing(path) as file:
            file.write(b"new" * 1000)

    with pytest.raises(DownloadError, match="the disk is full"):
        write()
    assert left(path) == ["file"]
    assert path.read_bytes() == b"old"


def test_a_disk_that_is_too_small_is_noticed_before(server, target, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=299_999)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DownloadError, match="299,999 bytes left, 300,000 are needed"):
        get(server, target)
    assert not target.with_name("file.bin.part").exists()


def test_a_folder_that_cannot_be_written_to(server, tmp_path):
    (tmp_path / "folder").write_bytes(b"a file")
    with pytest.raises(DownloadError, match=r"could not be written.*PJAX_DATA"):
        get(server, tmp_path / "folder" / "file.bin")
    assert server.requests == []


def test_an_error_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(stop):
        with replacing(path) as file:
            file.write(b"new")
            if stop:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(stop=True)
    assert left(path) == ["file"]
    assert path.read_bytes() == b"old"
    write(stop=False)
    assert left(path) == ["file"]
    assert path.read_bytes() == b"new"


def test_interrupting_keeps_what_has_arrived(server, target):
    def interrupt(done, *_):
        if done >= 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(server, target, progress=interrupt)
    length = target.with_name("file.bin.part").stat().st_size
    assert length >= 100_000
    server.requests.clear()
    get(server, target)
    assert server.ranges() == ([] if length == 300_000 else [f"bytes={length}-"])
    assert target.read_bytes() == BODY


def test_a_process_that_is_killed_leaves_a_part_to_continue(server, target):
    server.faults = [("stall", 200_000)]
    code = (
        "import sys, pathlib; from pjax.experiments.download import Download, File;"
        "Download(File((sys.argv[1],), sys.argv[3], 300_000), pathlib.Path(sys.argv[2]), tries=1,"
        " progress=lambda done, *_: done == 200_000 and print('now', flush=True)).fetch()"
    )
    command = [sys.executable, "-c", code, server.url("file.bin"), str(target), sha(BODY)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"now\n"
        finally:
            process.send_signal(signal.SIGKILL)
    length = target.with_name("file.bin.part").stat().st_size
    assert 0 < length <= 200_000
    get(server, target)
    assert server.ranges()[1:] == [f"bytes={length}-"]
    assert target.read_bytes() == BODY


def test_a_lock_lets_one_at_a_time_in(tmp_path):
    inside, most, rounds = [], [], 20

    def work():
        for _ in range(rounds):
            with locked(tmp_path / "lock", wait=30):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == [1] * 3 * rounds
    assert not (tmp_path / "lock").exists()


HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


def test_the_lock_of_a_process_that_died_is_no_obstacle(tmp_path):
    path = tmp_path / "lock"
    seen = []
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"held\n"
            with (
                pytest.raises(DownloadError, match="another process has held"),
                locked(path, wait=0.1, progress=lambda *what: seen.append(what)),
            ):
                raise AssertionError("two are inside")
            assert seen[0] == (0, None, "waiting for another process that downloads the same")
        finally:
            process.send_signal(signal.SIGKILL)
    with locked(path, wait=5):
        assert path.exists()
    assert not path.exists()
