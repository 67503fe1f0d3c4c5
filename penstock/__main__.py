"""`python -m penstock` is the command `penstock`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    try:
        # In here, so that a Ctrl-C while it is being imported ends the program quietly, too.
        from penstock.cli import main as command

        command(prog_name="penstock")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
