"""`python -m bench.counts`: work per record, counted and not timed; part of `make check`."""

from bench.counts.work import main

if __name__ == "__main__":
    main()
