"""`python -m benchmarks NAME [options]`."""

import importlib
import sys
from pathlib import Path


def names() -> list[str]:
    """The benchmarks: modules of this folder that have a `main`."""
    modules = sorted(p for p in Path(__file__).parent.glob("*.py") if not p.name.startswith("_"))
    return [p.stem for p in modules if "\ndef main(" in p.read_text()]


def run() -> int | None:
    name, *arguments = sys.argv[1:] or ["--help"]
    if name not in names():
        print(f"usage: python -m benchmarks {{{','.join(names())}}} [--help] [options]")
        return 0 if name in ("-h", "--help") else 2
    return importlib.import_module(f"benchmarks.{name}").main(arguments)


if __name__ == "__main__":
    sys.exit(run())
