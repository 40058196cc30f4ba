"""Checks of the endpoint's options, and of the files that they name, before anything starts. The
certificate and its key are loaded in the same way as the server will load them."""

import difflib
import os
import re
import ssl
import stat
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from controller.api.errors import LlumctlError, WrongSettingError
from controller.api.settings.vllm_options import EndpointOptions
from controller.api.state import user_files
from controller.api.text.hints import extra_command
from controller.main.checks.vllm_arguments import REASONING_PARSERS, TOOL_PARSERS

# The largest size of a template. Templates of models have up to 30 kB.
MAX_TEMPLATE_BYTES = 1 << 20
MAX_PLUGIN_BYTES = 1 << 20
# The largest size of a certificate file. Chains and bundles of authorities have up to 300 kB.
MAX_PEM_BYTES = 8 << 20
OTLP_MODULE = "opentelemetry.exporter.otlp.proto.http"
"""The module of the extra [otel] that a frontend needs for traces."""
NEED_CERTIFICATE = (
    *("ssl_keyfile", "ssl_ca_certs", "ssl_ciphers", "ssl_cert_reqs", "enable_ssl_refresh"),
)
_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def check_endpoint(options: EndpointOptions) -> None:
    """Checks all options. Raises WrongSettingError if an option or its file is wrong."""
    _check_plugins(options)
    _check_parsers(options)
    _check_template(options)
    _check_browsers(options)
    _check_tls(options)
    if options.fingerprint_value and options.fingerprint_mode != "custom":
        raise _wrong("fingerprint_value", 'is for endpoint.fingerprint_mode = "custom" only')
    if options.fingerprint_mode == "custom" and not options.fingerprint_value:
        raise _wrong("fingerprint_mode", "custom needs endpoint.fingerprint_value")


def check_traces(url: str | None) -> None:
    """Refuses traces that no frontend could send. `url`: the collector's. Raises
    LlumctlError."""
    if url is None or _has_otel():
        return
    raise LlumctlError(
        "endpoint.otlp_traces_endpoint needs the extra [otel], which is not installed (no"
        f" {OTLP_MODULE})",
        extra_command("otel"),
    )


def _has_otel() -> bool:
    try:
        return find_spec(OTLP_MODULE) is not None
    except ModuleNotFoundError:  # a package that would contain it is missing
        return False


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
        raise _wrong(
            "enable_auto_tool_choice",
            "needs a parser of tool calls",
            "llumctl up --tool-call-parser hermes      (the one of your model)",
        )


def _check_parser(key: str, name: str | None, known: Collection[str], plugin: str | None) -> None:
    """Refuses the name of a parser that vLLM does not have, if there is no plugin. A plugin may
    provide a parser of any name, and only its import would show which."""
    if name is None or plugin is not None or name in known:
        return
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    raise _wrong(
        key,
        f"{name[:60]!r} is not a parser of vLLM{meant}",
        f"one of: {', '.join(sorted(known))}",
    )


def _check_template(options: EndpointOptions) -> None:
    if options.chat_template is None:
        return
    text, _ = _read("chat_template", options.chat_template, MAX_TEMPLATE_BYTES)
    from jinja2 import TemplateSyntaxError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # transformers compiles templates in the same way; its tag {% generation %} is for training
    # only.
    environment = ImmutableSandboxedEnvironment(extensions=[loopcontrols])
    source = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", text)
    try:
        environment.from_string(source)
    except TemplateSyntaxError as error:
        raise _wrong(
            "chat_template",
            f"{options.chat_template}:{error.lineno}: {error.message}",
            f"${{EDITOR:-vi}} +{error.lineno} {options.chat_template}",
        ) from error
    except RecursionError:
        raise _wrong("chat_template", f"{options.chat_template}: nested too deeply") from None


def _check_plugins(options: EndpointOptions) -> None:
    """Refuses code that other users could change."""
    for key in ("tool_parser_plugin", "reasoning_parser_plugin"):
        name: str | None = getattr(options, key)
        if name is None:
            continue
        _, found = _read(key, name, MAX_PLUGIN_BYTES)
        if user_files.is_changed_by_others(found):
            raise _wrong(
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
            raise _wrong(
                "allowed_origins",
                f"{origin[:60]!r} is not an origin, which is a scheme and a host without a path",
                "--allowed-origins https://chat.example",
            )
    if options.allow_credentials and "*" in options.allowed_origins:
        raise _wrong(
            "allow_credentials",
            "cannot be combined with endpoint.allowed_origins = *: any page could act as its"
            " reader",
            "--allowed-origins https://chat.example",
        )
    for key in ("allowed_methods", "allowed_headers"):
        for word in getattr(options, key):
            if not _TOKEN.fullmatch(word):
                raise _wrong(key, f"{word[:60]!r} is not a name of an HTTP method or header")
    path = options.root_path
    if path is not None and not _ROOT_PATH.fullmatch(path):
        raise _wrong("root_path", f"{path[:60]!r} is not a path such as /llm", "--root-path /llm")


def _check_tls(options: EndpointOptions) -> None:
    certificate, key = options.ssl_certfile, options.ssl_keyfile
    if certificate is None:
        for name in NEED_CERTIFICATE:
            if getattr(options, name) not in (None, 0):
                raise _wrong(name, "needs endpoint.ssl_certfile", "llumctl up --ssl-certfile FILE")
        return
    _read("ssl_certfile", certificate, MAX_PEM_BYTES)
    private, name = (key, "ssl_keyfile") if key is not None else (certificate, "ssl_certfile")
    mode = stat.S_IMODE(_read(name, private, MAX_PEM_BYTES)[1].st_mode)
    if mode & 0o077:
        raise _wrong(
            name,
            f"{private} holds a private key and is open to other users (mode {mode:04o})",
            f"chmod 600 {private}",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except ValueError as error:
        raise _wrong(name, f"{private}: {error}", f"openssl pkey -in {private}") from error
    except (ssl.SSLError, OSError) as error:
        mismatch = getattr(error, "reason", "") == "KEY_VALUES_MISMATCH"
        why = "the key is not that of the certificate" if mismatch else _said(error)
        raise _wrong(
            name, f"{private}: {why}", f"openssl x509 -in {certificate} -noout -text"
        ) from error
    _check_clients(context, options)


def _check_clients(context: ssl.SSLContext, options: EndpointOptions) -> None:
    if options.ssl_ca_certs is not None:
        _read("ssl_ca_certs", options.ssl_ca_certs, MAX_PEM_BYTES)
        try:
            context.load_verify_locations(options.ssl_ca_certs)
        except ssl.SSLError as error:
            raise _wrong("ssl_ca_certs", f"{options.ssl_ca_certs}: {_said(error)}") from error
    elif options.ssl_cert_reqs:
        raise _wrong(
            "ssl_cert_reqs", "needs endpoint.ssl_ca_certs, which says whose certificates count"
        )
    if options.ssl_ciphers is not None:
        try:
            context.set_ciphers(options.ssl_ciphers)
        except ssl.SSLError as error:
            raise _wrong(
                "ssl_ciphers", f"{options.ssl_ciphers[:60]!r} selects no cipher", "openssl ciphers"
            ) from error


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase, which nobody could type at a start")


def _said(error: OSError) -> str:
    reason = getattr(error, "reason", None) or error.strerror or str(error)
    return f"not usable as PEM ({str(reason).lower().replace('_', ' ')})"


def _read(key: str, name: str, max_bytes: int) -> tuple[str, os.stat_result]:
    """The file's text and its status. Raises WrongSettingError if the file cannot be read."""
    try:
        raw, found = user_files.read_with_status(Path(name), max_bytes)
        return raw.decode("utf-8"), found
    except UnicodeDecodeError:
        raise _wrong(key, f"{name} is not text", f"file {name}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _wrong(key, f"cannot be read: {name}: {reason}", f"ls -l {name}") from error


def _wrong(key: str, what: str, hint: str = "llumctl up --help") -> WrongSettingError:
    return WrongSettingError(("endpoint", key), what, hint)
