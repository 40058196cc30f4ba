"""What the parser of the command line complains about, in the words of all other usage errors:
`WHAT: WHY`. WHAT is a flag, or an argument as the usage line names it.

The parser's errors are recognized by their attributes, because their classes moved between versions
of typer.
"""

import re
from typing import Any

from controller.api.errors import UsageError
from llumctl.arguments import nearest

_EXTRA = re.compile(r"^Got unexpected extra arguments?(?:\(s\))? \((?P<words>.*)\)$", re.DOTALL)
_COMMAND = re.compile(r"^No such command '(?P<word>.*?)'\.", re.DOTALL)
_CHOICES = re.compile(
    r"^(?:Value error, )?(?P<value>.*) is not one of (?P<words>.*?)\.?$", re.DOTALL
)


def is_of_parser(error: Exception) -> bool:
    """Whether the parser raised the error because the command line is wrong."""
    return hasattr(error, "format_message")


def usage_error(error: Any) -> UsageError:
    """The parser's complaint as an error of ours. If the parser knows the command, the hint is the
    command's help."""
    context = getattr(error, "ctx", None)
    hint = "" if context is None else f"{context.command_path} --help"
    return UsageError(_words(error), hint)


def _words(error: Any) -> str:
    message = str(error.message)
    option = getattr(error, "option_name", None)
    if option is not None and message.startswith("No such option"):
        return f"{option}: no such option{nearest(option, error.possibilities or ())}"
    if option is not None:
        return f"{option}: {'needs a' if 'requires' in message else 'takes no'} value"
    if type(error).__name__ == "MissingParameter":
        return f"{_name(error.param)}: must be given"
    if getattr(error, "param", None) is not None:
        return f"{_name(error.param)}: {_why(error)}"
    if found := _EXTRA.match(message):
        return f"{found['words']}: more than the command takes"
    commands = getattr(getattr(getattr(error, "ctx", None), "command", None), "commands", {})
    if found := _COMMAND.match(message):
        word, of = found["word"], error.ctx.command_path
        return f"COMMAND: {word[:60]!r} is not a command of {of}{nearest(word, commands)}"
    if message.startswith("Missing command"):
        return f"COMMAND: must be one of {', '.join(commands)}"
    return str(error.format_message()).rstrip(".")


def _name(parameter: Any) -> str:
    """The long form of an option; an argument without the marks of the usage line."""
    flags = [each for each in parameter.opts if each.startswith("-")]
    named = parameter.metavar or parameter.name
    return max(flags, key=len) if flags else str(named).strip("[].")


def _why(error: Any) -> str:
    """Why the value is wrong, with the nearest choice if there are choices."""
    if found := _CHOICES.match(error.message):
        choices = re.findall(r"'([^']*)'", found["words"])
        value = found["value"].strip("'")
        return f"{value!r} is not one of {', '.join(choices)}{nearest(value, choices)}"
    details: list[Any] = getattr(error.__cause__, "errors", list)()
    if not details:
        return str(error.message).rstrip(".")
    from controller.api.settings.setting_values import complaint

    return complaint(details[0], details[0]["input"])
