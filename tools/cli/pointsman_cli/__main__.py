"""`python -m pointsman_cli`."""

from pointsman_cli.app import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
