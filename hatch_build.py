"""The README as a package index shows it: there, links to files of the repository lead nowhere."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:)([^)\s]+)\)")


def on_index(text: str, source: str | None) -> str:
    """The text with links to files of the public repository or, as long as there is none, without them.

    A link to a heading becomes one to the README there, since not every index gives headings an address.

    >>> on_index("[all](docs/a.md) and [more](https://x.org)", "https://x.org/pjax")
    '[all](https://x.org/pjax/blob/main/docs/a.md) and [more](https://x.org)'
    >>> on_index("![a plot](plot.png), [all](docs/a.md)", None)
    ', all'
    >>> on_index("[below](#more)", "https://x.org/pjax")
    '[below](https://x.org/pjax/blob/main/README.md#more)'
    """

    def absolute(found: re.Match[str]) -> str:
        picture, words, target = found.groups()
        if source is None:
            return "" if picture else words
        target = f"README.md{target}" if target.startswith("#") else target
        return f"{picture}[{words}]({source.rstrip('/')}/{'raw' if picture else 'blob'}/main/{target})"

    return _LINK.sub(absolute, text)


class CustomMetadataHook(MetadataHookInterface):
    """Hands the README to whoever builds the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the text; the public repository is ``Source`` of the project's URLs."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {"content-type": "text/markdown", "text": on_index(text, source)}
