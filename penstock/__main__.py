"""Run the command `penstock` with `python -m penstock`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line of Penstock.

    After a Ctrl-C, it prints "stopped" and exits with code 130.
    """
    try:
        # The import is in the `try` block, so that a Ctrl-C during the import prints no traceback.
        from penstock.cli import main as command

        command(prog_name="penstock")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
