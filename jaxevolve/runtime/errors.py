"""The one exception that is meant for a person, and the fix that it suggests."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input: one sentence with the thing, its value and the fix.

    The commands print it without a traceback and exit with code 2.
    """


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a person most likely meant, or None where nothing is near."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None
