"""`python -m art.cli`: the `art` command."""

from art.cli.main import main

if __name__ == "__main__":
    main()
