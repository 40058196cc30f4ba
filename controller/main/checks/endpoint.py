"""Checks of the endpoint's options before anything starts."""

import difflib
import re
import stat
from collections.abc import Collection
from urllib.parse import urlsplit

from controller.api.settings.endpoint_options import EndpointOptions
from controller.api.state import user_files
from controller.main.checks.endpoint_files import read, wrong
from controller.main.checks.endpoint_tls import check_tls
from controller.main.checks.vllm_arguments import REASONING_PARSERS, TOOL_PARSERS

# Templates of models have up to 30 kB.
MAX_TEMPLATE_BYTES = 1 << 20
MAX_PLUGIN_BYTES = 1 << 20
_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def check_endpoint(options: EndpointOptions) -> None:
    """Raises WrongSettingError."""
    _check_plugins(options)
    _check_parsers(options)
    _check_template(options)
    _check_browsers(options)
    check_tls(options)
    if options.fingerprint_value and options.fingerprint_mode != "custom":
        raise wrong("fingerprint_value", 'is for endpoint.fingerprint_mode = "custom" only')
    if options.fingerprint_mode == "custom" and not options.fingerprint_value:
        raise wrong("fingerprint_mode", "custom needs endpoint.fingerprint_value")


def _check_parsers(options: EndpointOptions) -> None:
    _check_parser(
        "tool_call_parser", options.tool_call_parser, TOOL_PARSERS, options.tool_parser_plugin
    )
    _check_parser(
        "reasoning_parser",
        options.reasoning_parser,
        REASONING_PARSERS,
        options.reasoning_parser_plugin,
    )
    if options.enable_auto_tool_choice and options.tool_call_parser is None:
        raise wrong(
            "enable_auto_tool_choice",
            "needs a parser of tool calls",
            "llumctl up --tool-call-parser hermes      (the one of your model)",
        )


def _check_parser(key: str, name: str | None, known: Collection[str], plugin: str | None) -> None:
    """Refuses unknown names if there is no plugin: a plugin may bring any name, which only its
    import would tell."""
    if name is None or plugin is not None or name in known:
        return
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    raise wrong(
        key,
        f"{name[:60]!r} is no parser of vLLM's{meant}",
        f"one of: {', '.join(sorted(known))}",
    )


def _check_template(options: EndpointOptions) -> None:
    if options.chat_template is None:
        return
    text, _ = read("chat_template", options.chat_template, MAX_TEMPLATE_BYTES)
    from jinja2 import TemplateSyntaxError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # transformers compiles templates so, too, and has a tag {% generation %}, for training only.
    environment = ImmutableSandboxedEnvironment(extensions=[loopcontrols])
    source = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", text)
    try:
        environment.from_string(source)
    except TemplateSyntaxError as error:
        raise wrong(
            "chat_template",
            f"{options.chat_template}:{error.lineno}: {error.message}",
            f"${{EDITOR:-vi}} +{error.lineno} {options.chat_template}",
        ) from error
    except RecursionError:
        raise wrong("chat_template", f"{options.chat_template}: nested too deeply") from None


def _check_plugins(options: EndpointOptions) -> None:
    """Refuses code that other users can change."""
    for key in ("tool_parser_plugin", "reasoning_parser_plugin"):
        name: str | None = getattr(options, key)
        if name is None:
            continue
        _, found = read(key, name, MAX_PLUGIN_BYTES)
        if user_files.is_changed_by_others(found):
            raise wrong(
                key,
                f"{name} can be changed by other users (uid {found.st_uid},"
                f" mode {stat.S_IMODE(found.st_mode):04o})",
                f"chmod go-w {name}",
            )


def _check_browsers(options: EndpointOptions) -> None:
    for origin in options.allowed_origins:
        parts = urlsplit(origin)
        is_origin = parts.scheme in ("http", "https") and parts.netloc
        if origin != "*" and not (is_origin and origin == f"{parts.scheme}://{parts.netloc}"):
            raise wrong(
                "allowed_origins",
                f"{origin[:60]!r} is no origin: scheme and host, without a path",
                "--allowed-origins https://chat.example",
            )
    if options.allow_credentials and "*" in options.allowed_origins:
        raise wrong(
            "allow_credentials",
            "cannot be with endpoint.allowed_origins = *: any page could act as its reader",
            "--allowed-origins https://chat.example",
        )
    for key in ("allowed_methods", "allowed_headers"):
        for word in getattr(options, key):
            if not _TOKEN.fullmatch(word):
                raise wrong(key, f"{word[:60]!r} is no name of an HTTP method or header")
    path = options.root_path
    if path is not None and not _ROOT_PATH.fullmatch(path):
        raise wrong("root_path", f"{path[:60]!r} is no path such as /llm", "--root-path /llm")
