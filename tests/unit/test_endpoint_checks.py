"""Which options of the endpoint `up` refuses before it starts anything."""

import os
from pathlib import Path
from typing import Any

import pytest

from controller.api.errors import LlumctlError, WrongSettingError
from controller.api.settings.settings import EndpointTable
from controller.main.checks import endpoint
from controller.main.checks.endpoint import MAX_TEMPLATE_BYTES, check_endpoint, check_traces
from tests.certificates import make


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    texts = {
        "text": "hello",
        # Templates of models have loop controls, JSON, and the tag that only training uses.
        "template": "{% for m in messages %}{% if m.x %}{% continue %}{% endif %}"
        "{% generation %}{{ m | tojson }}{% endgeneration %}{% endfor %}",
        "unclosed": "fine\n{% for m in messages %}",
        "unknown": "{{ messages | no_such_filter }}",
        "plugin": "",
        "plugin_of_the_group": "",
        "plugin_of_all": "",
    }
    made = {name: folder / name for name in (*texts, "none", "folder", "pipe", "binary", "large")}
    for name, text in texts.items():
        made[name].touch(0o600)
        made[name].write_text(text)
    made["plugin_of_the_group"].chmod(0o620)
    made["plugin_of_all"].chmod(0o602)
    made["folder"].mkdir()
    os.mkfifo(made["pipe"])
    made["binary"].write_bytes(b"\xff\xfe\x00")
    with made["large"].open("w") as large:
        large.truncate(MAX_TEMPLATE_BYTES + 1)
    for name in ("", "other_", "locked_"):
        (folder / f"{name}pair").mkdir()
        passphrase = {"passphrase": "secret"} if name == "locked_" else {}
        pair = make(folder / f"{name}pair", "a", **passphrase)
        made[f"{name}certificate"], made[f"{name}key"] = pair
    made["both"] = folder / "both"
    made["both"].touch(0o600)
    made["both"].write_text(made["certificate"].read_text() + made["key"].read_text())
    made["open_key"] = folder / "open_key"
    made["open_key"].write_text(made["key"].read_text())
    made["open_key"].chmod(0o640)
    return made


def filled(options: dict[str, Any], files: dict[str, Path]) -> EndpointTable:
    """The options, with the files' names in place of `{name}`."""
    return EndpointTable(
        **{k: v.format(**files) if isinstance(v, str) else v for k, v in options.items()}
    )


TAKEN: list[dict[str, Any]] = [
    {"tool_call_parser": "hermes", "reasoning_parser": "qwen3", "enable_auto_tool_choice": True},
    {"tool_call_parser": "of-the-plugin", "tool_parser_plugin": "{plugin}"},
    {"chat_template": "{template}"},
    {"ssl_certfile": "{certificate}", "ssl_keyfile": "{key}"},
    {"ssl_certfile": "{both}", "ssl_ciphers": "ECDHE+AESGCM"},
    {"ssl_certfile": "{both}", "ssl_ca_certs": "{certificate}", "ssl_cert_reqs": 2},
    {
        "allowed_origins": ["https://a.example", "http://localhost:3000"],
        "allow_credentials": True,
        "root_path": "/a/llm-1",
    },
    {"allowed_origins": ["*"]},
    {"fingerprint_mode": "custom", "fingerprint_value": "x"},
]


@pytest.mark.parametrize("options", TAKEN)
def test_what_is_taken(options: dict[str, Any], files: dict[str, Path]) -> None:
    check_endpoint(filled(options, files))


PAIR = {"ssl_certfile": "{certificate}", "ssl_keyfile": "{key}"}
LOCKED = {"ssl_certfile": "{locked_certificate}", "ssl_keyfile": "{locked_key}"}
# The end of the message and the beginning of the hint, or a part of either.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tool_call_parser": "hermess"}, "did you mean hermes? | one of: apertus, "),
    ({"reasoning_parser": "hermes"}, "reasoning_parser 'hermes' is not a parser of vLLM"),
    ({"enable_auto_tool_choice": True}, " | llumctl up --tool-call-parser hermes"),
    ({"tool_parser_plugin": "{plugin_of_the_group}"}, " | chmod go-w {plugin_of_the_group}"),
    ({"reasoning_parser_plugin": "{plugin_of_all}"}, "can be changed by other users"),
    # templates
    ({"chat_template": "{unclosed}"}, "{unclosed}:2: Unexpected end of template"),
    ({"chat_template": "{unknown}"}, "no_such_filter"),
    ({"chat_template": "{folder}"}, "Is a directory"),
    # at once, though opening a pipe waits for a writer
    ({"chat_template": "{pipe}"}, "it is a pipe, not a regular file"),
    ({"chat_template": "{binary}"}, "is not text"),
    ({"chat_template": "{large}"}, "it is larger than"),
    # TLS
    (PAIR | {"ssl_keyfile": "{other_key}"}, "{other_key}: the key is not that of the certificate"),
    (PAIR | {"ssl_keyfile": "{open_key}"}, "open to other users (mode 0640)"),
    (PAIR | {"ssl_keyfile": "{open_key}"}, " | chmod 600 {open_key}"),
    (LOCKED, "has a passphrase"),
    ({"ssl_certfile": "{text}"}, "endpoint.ssl_certfile {text}: not usable as PEM"),
    (PAIR | {"ssl_keyfile": "{none}"}, "cannot be read"),
    ({"ssl_keyfile": "{key}"}, "ssl_keyfile needs endpoint.ssl_certfile"),
    (PAIR | {"ssl_cert_reqs": 2}, "ssl_cert_reqs needs endpoint.ssl_ca_certs"),
    (PAIR | {"ssl_ca_certs": "{text}"}, "ssl_ca_certs {text}: not usable"),
    (PAIR | {"ssl_ciphers": "none-such"}, "'none-such' selects no cipher"),
    # proxies and browsers
    ({"allowed_origins": ["a.example"]}, "is not an origin"),
    ({"allowed_origins": ["*"], "allow_credentials": True}, "cannot be combined with"),
    ({"allowed_methods": ["GET POST"]}, "'GET POST' is not a name of an HTTP method"),
    ({"root_path": "llm"}, "is not a path such as /llm"),
    ({"fingerprint_mode": "custom"}, "needs endpoint.fingerprint_value"),
    ({"fingerprint_value": "x"}, "is for endpoint.fingerprint_mode"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_is_refused(options: dict[str, Any], words: str, files: dict[str, Path]) -> None:
    with pytest.raises(WrongSettingError) as caught:
        check_endpoint(filled(options, files))
    assert caught.value.key[0] == "endpoint"
    assert words.format(**files) in f"{caught.value.message} | {caught.value.hint}"


def test_traces_need_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    check_traces("http://localhost:4318")
    for missing in ("opentelemetry.no_such_module", "no_such_package.otlp"):
        monkeypatch.setattr(endpoint, "OTLP_MODULE", missing)
        check_traces(None)
        with pytest.raises(LlumctlError, match=r"needs the extra \[otel\]") as found:
            check_traces("http://localhost:4318")
        assert found.value.hint == "make install"


@pytest.mark.parametrize(
    "url", ["localhost:4318", "grpc://c:4317", "http://", "http://a b", "http://u:p@c", ""]
)
def test_a_collector_has_a_url_of_http(url: str) -> None:
    with pytest.raises(ValueError, match="otlp_traces_endpoint"):
        EndpointTable(otlp_traces_endpoint=url)
