"""The command line as ``python -m pjax``; what it takes is in `pjax_command`."""

from pjax_command import main

if __name__ == "__main__":
    main()
