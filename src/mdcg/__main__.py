"""The entry point of `python -m mdcg`."""

from mdcg.cli import main

main()
