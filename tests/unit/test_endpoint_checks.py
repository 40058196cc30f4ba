"""Which options of the endpoint `up` refuses before it starts anything."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.api.errors import WrongSettingError
from controller.api.settings.settings import EndpointTable
from controller.main.checks import endpoint as endpoint_checks
from controller.main.checks.endpoint import check_endpoint
from tests.certificates import make


def refusal(**options: Any) -> WrongSettingError:
    with pytest.raises(WrongSettingError) as caught:
        check_endpoint(EndpointTable(**options))
    assert caught.value.key[0] == "endpoint"
    return caught.value


def test_parsers_that_vllm_has_are_taken() -> None:
    check_endpoint(EndpointTable(tool_call_parser="hermes", reasoning_parser="qwen3"))


def test_an_unknown_parser_names_the_nearest_and_all() -> None:
    error = refusal(tool_call_parser="hermess")
    assert error.message == (
        "endpoint.tool_call_parser 'hermess' is not a parser of vLLM; did you mean hermes?"
    )
    assert error.hint.startswith("one of: apertus, ")
    assert ", hermes, " in error.hint
    assert "reasoning_parser 'hermes' is not a parser" in refusal(reasoning_parser="hermes").message


def test_the_parser_of_a_plugin_may_have_any_name(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text("")
    check_endpoint(EndpointTable(tool_call_parser="mine", tool_parser_plugin=str(plugin)))


def test_automatic_tools_need_a_parser() -> None:
    error = refusal(enable_auto_tool_choice=True)
    assert error.hint.startswith("llumctl up --tool-call-parser hermes")


@pytest.mark.parametrize("mode", [0o666, 0o602, 0o620])
def test_a_plugin_that_others_can_change_is_refused(tmp_path: Path, mode: int) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text("")
    plugin.chmod(mode)
    error = refusal(tool_parser_plugin=str(plugin))
    assert "can be changed by other users" in error.message
    assert error.hint == f"chmod go-w {plugin}"


# -- files --------------------------------------------------------------------------------


def test_a_template_that_compiles_is_taken(tmp_path: Path) -> None:
    """Templates of models have loop controls, JSON, and the tag that only training uses."""
    template = tmp_path / "chat.jinja"
    template.write_text(
        "{% for m in messages %}{% if m.x %}{% continue %}{% endif %}"
        "{% generation %}{{ m | tojson }}{% endgeneration %}{% endfor %}"
    )
    check_endpoint(EndpointTable(chat_template=str(template)))


def test_a_template_that_does_not_compile_is_told_with_its_line(tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("fine\n{% for m in messages %}")
    error = refusal(chat_template=str(template))
    assert f"{template}:2: Unexpected end of template" in error.message
    assert f"+2 {template}" in error.hint


def test_a_template_with_an_unknown_filter_is_refused(tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages | no_such_filter }}")
    assert "no_such_filter" in refusal(chat_template=str(template)).message


def _absent(path: Path) -> None:
    path.unlink()


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _binary(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")


def _large(path: Path) -> None:
    with path.open("w") as file:
        file.truncate(endpoint_checks.MAX_TEMPLATE_BYTES + 1)


@pytest.mark.parametrize(
    ("becomes", "why"),
    [
        (_absent, "No such file"),
        (_folder, "Is a directory"),
        (_fifo, "it is a pipe, not a regular file"),
        (_binary, "is not text"),
        (_large, "it is larger than"),
    ],
)
def test_a_template_that_is_no_file_is_refused(
    tmp_path: Path, becomes: Callable[[Path], None], why: str
) -> None:
    """A pipe is refused, too, and at once, though opening a pipe waits for a writer."""
    template = tmp_path / "chat.jinja"
    template.write_text("")
    becomes(template)
    assert why in refusal(chat_template=str(template)).message


# -- TLS ----------------------------------------------------------------------------------


def test_a_certificate_with_its_key_is_taken(tmp_path: Path) -> None:
    certificate, key = make(tmp_path, "a")
    both = tmp_path / "both.pem"
    both.touch(0o600)
    both.write_text(certificate.read_text() + key.read_text())
    check_endpoint(EndpointTable(ssl_certfile=str(certificate), ssl_keyfile=str(key)))
    check_endpoint(EndpointTable(ssl_certfile=str(both), ssl_ciphers="ECDHE+AESGCM"))
    clients = {"ssl_ca_certs": str(certificate), "ssl_cert_reqs": 2}
    check_endpoint(EndpointTable(ssl_certfile=str(both), **clients))


def test_the_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    certificate, _ = make(tmp_path, "a")
    _, other = make(tmp_path, "b")
    error = refusal(ssl_certfile=str(certificate), ssl_keyfile=str(other))
    assert error.message == (
        f"endpoint.ssl_keyfile {other}: the key is not that of the certificate"
    )


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    certificate, key = make(tmp_path, "a")
    key.chmod(0o640)
    error = refusal(ssl_certfile=str(certificate), ssl_keyfile=str(key))
    assert "open to other users (mode 0640)" in error.message
    assert error.hint == f"chmod 600 {key}"


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    certificate, key = make(tmp_path, "a", passphrase="secret")
    error = refusal(ssl_certfile=str(certificate), ssl_keyfile=str(key))
    assert "has a passphrase" in error.message


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"ssl_certfile": "{text}"}, "endpoint.ssl_certfile {text}: not usable as PEM"),
        ({"ssl_certfile": "{a}", "ssl_keyfile": "{text}"}, "not usable as PEM"),
        ({"ssl_certfile": "{a}", "ssl_keyfile": "{none}"}, "cannot be read"),
        ({"ssl_keyfile": "{key}"}, "ssl_keyfile needs endpoint.ssl_certfile"),
        ({"enable_ssl_refresh": True}, "enable_ssl_refresh needs endpoint.ssl_certfile"),
        (
            {"ssl_certfile": "{a}", "ssl_keyfile": "{key}", "ssl_cert_reqs": 2},
            "ssl_cert_reqs needs endpoint.ssl_ca_certs",
        ),
        (
            {"ssl_certfile": "{a}", "ssl_keyfile": "{key}", "ssl_ca_certs": "{text}"},
            "ssl_ca_certs {text}: not usable",
        ),
        (
            {"ssl_certfile": "{a}", "ssl_keyfile": "{key}", "ssl_ciphers": "none-such"},
            "'none-such' selects no cipher",
        ),
    ],
)
def test_what_is_no_tls_is_refused(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    certificate, key = make(tmp_path, "a")
    text = tmp_path / "text"
    text.touch(0o600)
    text.write_text("hello")
    names = {"a": certificate, "key": key, "text": text, "none": tmp_path / "none"}
    filled = {k: v.format(**names) if isinstance(v, str) else v for k, v in options.items()}
    assert why.format(**names) in refusal(**filled).message


# -- proxies and browsers -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"allowed_origins": ["https://a.example/x"]}, "is not an origin"),
        ({"allowed_origins": ["a.example"]}, "is not an origin"),
        ({"allowed_origins": ["*"], "allow_credentials": True}, "cannot be combined with"),
        ({"allowed_methods": ["GET POST"]}, "'GET POST' is not a name of an HTTP method"),
        ({"root_path": "llm"}, "is not a path such as /llm"),
        ({"root_path": "/llm/"}, "is not a path such as /llm"),
        ({"root_path": "/"}, "is not a path such as /llm"),
        ({"fingerprint_mode": "custom"}, "needs endpoint.fingerprint_value"),
        ({"fingerprint_value": "x"}, "is for endpoint.fingerprint_mode"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], why: str) -> None:
    assert why in refusal(**options).message


def test_origins_and_a_root_path_are_taken() -> None:
    origins = ["https://a.example", "http://localhost:3000"]
    check_endpoint(
        EndpointTable(allowed_origins=origins, allow_credentials=True, root_path="/a/llm-1")
    )
    check_endpoint(EndpointTable(allowed_origins=["*"]))
