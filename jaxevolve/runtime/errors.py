"""The one exception that is meant for a person."""


class UserError(Exception):
    """Bad input: one sentence with the thing, its value and the fix.

    The commands print it without a traceback and exit with code 2.
    """
