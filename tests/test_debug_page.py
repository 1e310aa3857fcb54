"""The page on debugging: its examples run, one after the other."""

import re
from pathlib import Path

from tests import pages

PATH = pages.ROOT / "docs" / "debugging.md"
PAGE = PATH.read_text()


def test_the_examples_run(capsys):
    exec(compile("\n".join(pages.sources(PATH)), "train.py", "exec"), {"__name__": "page"})
    assert Path("violations.png").is_file()
    printed = capsys.readouterr().out
    shown = re.findall(r"^```text\n(not finite.*?|update: .*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert len(shown) == 2
    for block in shown:
        assert block in printed
