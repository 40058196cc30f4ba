"""Errors for people: what went wrong, why, and the next command to try.

This module imports the standard library only, so that every layer may raise them. The command line
turns an error into two lines on stderr and its `exit_code` into the status of the process.
"""

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_NOT_FOUND = 4
EXIT_REFUSED = 5
EXIT_CONFLICT = 6
EXIT_WOULD_CHANGE = 10
EXIT_TIMED_OUT = 124
EXIT_INTERRUPTED = 130


class LlumctlError(Exception):
    """`message` says what and why, `hint` the command to try next (empty: none known)."""

    exit_code: int = EXIT_FAILED

    def __init__(self, message: str, hint: str = "", exit_code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code

    def __reduce__(self) -> tuple[object, ...]:
        """Lets Ray pickle these errors to carry them out of actors."""
        return type(self), (self.message, self.hint, self.exit_code)


class UsageError(LlumctlError):
    """A wrong flag, variable or config file, which the message names first."""

    exit_code = EXIT_USAGE


class WrongSettingError(UsageError):
    """A setting has a value that it cannot have; the command line says first where it was set."""

    def __init__(self, key: tuple[str, ...], what: str, hint: str = "") -> None:
        super().__init__(f"{'.'.join(key)} {what}", hint)
        self.key = key
        self.what = what

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.key, self.what, self.hint)


class UnreachableError(LlumctlError):
    """No controller runs, or it does not answer."""

    exit_code = EXIT_UNREACHABLE


class AnswerLostError(UnreachableError):
    """The call was sent, and no answer came: the controller may have done what was asked."""


class NotRunningError(UnreachableError):
    """There is no run state: no cluster of that name was started, or it was stopped."""


class NotFoundError(LlumctlError):
    """No such instance or request."""

    exit_code = EXIT_NOT_FOUND


class NoSuchCallError(NotFoundError):
    """The controller, since it started, got no call with that key."""


class RefusedError(LlumctlError):
    """Not allowed: read-only, a bad token, a limit, somebody else at work."""

    exit_code = EXIT_REFUSED


class NotDrainingError(RefusedError):
    """There is no drain to take back."""


class NotRollingError(RefusedError):
    """There is no rolling restart to stop."""


class LastInstanceError(RefusedError):
    """No other instance would serve."""


class ConflictError(LlumctlError):
    """The cluster changed since it was looked at."""

    exit_code = EXIT_CONFLICT


class UnderWayError(ConflictError):
    """The call asked about is not over."""


class TimedOutError(LlumctlError):
    """Something did not happen in time; the message names it."""

    exit_code = EXIT_TIMED_OUT
