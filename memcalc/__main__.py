"""``python -m memcalc`` and the ``memcalc`` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from memcalc.cli.app import app

    app()


if __name__ == "__main__":
    main()
