"""Errors for people: what went wrong, why, and the next command to try.

This module imports the standard library only, so that every layer may raise them. The command line
turns an error into two lines on stderr and its `exit_code` into the status of the process.
"""

EXIT_DONE = 0
"""Done, or there was nothing to do."""
EXIT_FAILED = 1
"""Failed. `status --check` and `doctor`: a member, the cluster or the machine is not well; an alarm
about load does not count. `bench`: a request failed, or a token was wrong. `simulate`: no size
meets the targets, or with `--strict` a run reached no steady state."""
EXIT_USAGE = 2
"""Wrong usage or configuration."""
EXIT_UNREACHABLE = 3
"""No controller runs, or it does not answer."""
EXIT_NOT_FOUND = 4
"""There is no such instance, request, operation, adapter or log."""
EXIT_REFUSED = 5
"""Refused: the cluster runs already; the name given to `--confirm` is wrong; a bad token; `top`
without a terminal; a request that cannot move or has ended; an operation without undo; the last
instance that serves; a confirmation that was not given, or for which there was nobody to ask."""
EXIT_CONFLICT = 6
"""Conflict: a name fits several requests, and the number of live ones among them is not one; the
cluster has a revision other than that of `--if-revision`; the cluster is not as it was shown or
planned."""
EXIT_WOULD_CHANGE = 10
"""A dry run that would change something."""
EXIT_TIMED_OUT = 124
"""Something took too long: the cluster was not ready, the condition of `status --wait` did not come
true, a move was not over within `--timeout`, or the deadline of a drain passed."""
EXIT_INTERRUPTED = 130
"""Interrupted by Ctrl-C. A command that another signal ends exits with 128 and the signal's number:
143 for SIGTERM."""


def one_line(error: BaseException, max_chars: int = 200) -> str:
    """The error's text on one line, or the name of its kind if it has no text."""
    return " ".join(str(error).split())[:max_chars] or type(error).__name__


class LlumctlError(Exception):
    """`message` says what went wrong and why. `hint` is the command to try next (empty: none is
    known)."""

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
    """A flag, a variable or the config file is wrong. The message begins with the name of the flag,
    variable or file."""

    exit_code = EXIT_USAGE


class WrongSettingError(UsageError):
    """A setting has a value that is not allowed. The command line puts the place where the value
    was set in front of the message."""

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
    """There is no run state: no cluster of that name was started, or the cluster was stopped."""


class NotFoundError(LlumctlError):
    """No such instance, request, operation, adapter or log."""

    exit_code = EXIT_NOT_FOUND


class NoSuchCallError(NotFoundError):
    """The controller got no call with that key since it started."""


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
    """The cluster has changed since the caller looked at it."""

    exit_code = EXIT_CONFLICT


class UnderWayError(ConflictError):
    """The call that the client asks about is still being carried out."""


class TimedOutError(LlumctlError):
    """Something did not happen in time; the message names it."""

    exit_code = EXIT_TIMED_OUT
