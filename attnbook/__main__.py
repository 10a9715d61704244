"""The command ``attnbook``, also as ``python -m attnbook``.

``attnbook doctor`` comes first: it has to run where the packages that the other commands import are missing or broken.
"""

import io
import sys


def main() -> None:
    """Run the command line.

    Raises:
        SystemExit: With the exit code of the command.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what a terminal or file in latin-1 cannot hold
    if sys.argv[1:2] == ["doctor"]:
        from attnbook import doctor

        raise SystemExit(doctor.main(sys.argv[2:]))
    try:
        from attnbook.cli import app
    except ImportError as error:
        print(f"attnbook: {error}; `python -m attnbook doctor` says what to install", file=sys.stderr)
        raise SystemExit(2) from error
    app()


if __name__ == "__main__":
    main()
