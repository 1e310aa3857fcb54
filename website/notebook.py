"""Pages that are notebooks: each example is run when the site is built, and shown with what it gives.

A page is one if it starts with ``notebook: true`` between two lines of dashes. The site has it as a file for
Jupyter as well, which the page links to.
"""

import ast
import base64
import contextlib
import io
import json
import re
from typing import Any

_BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def run(markdown: str, name: str) -> str:
    """The text of a notebook with the output of each example below it.

    >>> print(run("```python\\nx = 2\\nx + x\\n```", "page.md"))
    ```python
    x = 2
    x + x
    ```
    <BLANKLINE>
    <div class="output" markdown>
    ```text
    4
    ```
    </div>
    """
    names: dict[str, Any] = {"__name__": "notebook"}
    return _BLOCK.sub(lambda found: found[0] + _output(found[1], name, names), markdown)


def _output(source: str, name: str, names: dict[str, Any]) -> str:
    tree = ast.parse(source, name)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, name, "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), names)
        if value is not None:
            print(repr(value))
    text = printed.getvalue().rstrip()
    shown = f'\n\n<div class="output" markdown>\n```text\n{text}\n```\n</div>' if text else ""
    return shown + "".join(f"\n\n{picture}" for picture in _pictures())


def _pictures() -> list[str]:
    """The figures that are open, as images; they are closed."""
    import matplotlib.pyplot as plt

    found = []
    for number in plt.get_fignums():
        figure, file = plt.figure(number), io.BytesIO()
        figure.savefig(file, format="svg", bbox_inches="tight")
        title = next((axes.get_title() for axes in figure.axes if axes.get_title()), "a figure")
        found.append(f"![{title}](data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()})")
        plt.close(figure)
    return found


INSTALL = '%pip install -q "pjax-learn[draw]"'


def as_jupyter(markdown: str) -> str:
    """The text of a page as a file for Jupyter, with what to install in its first cell.

    >>> cells = json.loads(as_jupyter("A word.\\n\\n```python\\n1 + 1\\n```"))["cells"]
    >>> [(cell["cell_type"], "".join(cell["source"])) for cell in cells[1:]]
    [('markdown', 'A word.'), ('code', '1 + 1')]
    """
    cells = [_cell("code", INSTALL)]
    for number, part in enumerate(_BLOCK.split(markdown)):
        if part.strip():
            cells.append(_cell("code" if number % 2 else "markdown", part.strip()))
    about = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    book = {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def _cell(kind: str, text: str) -> dict[str, Any]:
    more = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True), **more}
