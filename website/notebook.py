"""Pages that are notebooks: each example is run when the site is built, and shown with what it gives.

A page is one if it starts with ``notebook: true`` between two lines of dashes.
"""

import ast
import base64
import contextlib
import io
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
