"""The command line, `pjax` or `python -m pjax`."""

import sys

from pjax.experiments import endings


def main() -> None:
    """Run the command line, or say what to install for it."""
    endings.listen()
    try:
        import matplotlib  # noqa: F401
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        sys.exit(f'pjax: the command line needs {error.name}: pip install "pjax-learn[experiments]"')
    from pjax.experiments.cli import app

    try:
        app(prog_name="pjax")
    finally:
        endings.deaf()


if __name__ == "__main__":
    main()
