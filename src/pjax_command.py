"""The command `pjax`.

Outside of the package, which takes a second to import: an interrupt until then ends it at once, and cannot be
lost in the import of something else.
"""

import os
import signal


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, _leave)
    if hasattr(signal, "pthread_sigmask"):  # whoever started this may have held interrupts back until now
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    from pjax.__main__ import main

    main()


def _leave(*_: object) -> None:
    os.write(2, b"\ninterrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
