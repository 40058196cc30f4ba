"""vLLM's options of the endpoint, from flag, variable and file to what vLLM gets."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from controller.api.errors import UsageError, WrongSettingError
from controller.api.settings.settings import Settings
from controller.api.settings.vllm_options import (
    Code,
    EndpointOptions,
    engine_options,
    frontend_options,
)
from controller.api.state.run_state import RunState
from controller.main.plan import endpoint_url, state_of
from llumctl.app import run
from llumctl.config import settings as llumctl_settings
from tests.unit.cli_support import cluster
from tests.unit.test_security import plan

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Settings that `up` would have started with, or an error that it raises."""
    found: list[Any] = []

    def start(settings: Settings, **_: Any) -> None:
        if found:
            raise found.pop()
        found.append(settings)

    monkeypatch.setattr("controller.main.up.run", start)
    return found


def load(text: str, tmp_path: Path, mode: int = 0o600, **environ: str) -> Settings:
    file = tmp_path / "c.toml"
    file.write_text(text)
    file.chmod(mode)
    return llumctl_settings.load(config=file, environ=environ)


FLAGS = {
    "--tool-call-parser hermes": ("tool_call_parser", "hermes"),
    "--no-enable-auto-tool-choice": ("enable_auto_tool_choice", False),
    '--default-chat-template-kwargs {"a":[1]}': ("default_chat_template_kwargs", {"a": [1]}),
    "--allowed-origins https://a,https://b": ("allowed_origins", ("https://a", "https://b")),
    "--ssl-cert-reqs 2": ("ssl_cert_reqs", 2),
    "--sse-keep-alive-interval 15": ("sse_keep_alive_interval", 15),
    "--fingerprint-mode none": ("fingerprint_mode", "none"),
    "--served-model-name a,b": ("served_model_name", ("a", "b")),
    "--no-enable-force-include-usage": ("enable_force_include_usage", False),
}


def test_flags_become_settings_and_win_over_the_file(started: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[endpoint]\nenable_force_include_usage = true\nroot_path = '/a'\n")
    sampling = ["--override-generation-config", '{"temperature": 0.5}']
    assert run(["up", "--config", str(file), *" ".join(FLAGS).split(), *sampling]) == 0
    (settings,) = started
    for name, value in FLAGS.values():
        assert getattr(settings.endpoint, name) == value, name
    assert settings.endpoint.override_generation_config.temperature == 0.5
    assert settings.endpoint.root_path == "/a"
    assert (settings.model_names, settings.served_model_name) == (("a", "b"), ["a", "b"])
    assert Settings().served_model_name == "embedded"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--served-model-name", " , "], "served_model_name is refused: it names nothing"),
        (["--tool-parser-plugin", "p.py"], "No such option"),  # code comes out of no flag
    ],
)
def test_a_flag_that_is_refused_starts_nothing(
    started: list[Any], capsys: Captured, flags: list[str], says: str
) -> None:
    assert run(["up", *flags]) == 2
    assert started == []
    assert says in capsys.readouterr().err


def test_the_help_names_every_option_once_but_those_of_code(capsys: Captured) -> None:
    assert run(["up", "--help"]) == 0
    text = capsys.readouterr().out
    for title in ("Tools and reasoning", "Chat templates", "Answers", "Proxies", "TLS"):
        assert title in text
    words = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
    for name, info in EndpointOptions.model_fields.items():
        flag = name.replace("_", "-")
        times = words.count(f"--{flag}") + words.count(f"--[no-]{flag}")
        assert times == (Code not in info.metadata), name


def test_variables_become_settings_and_files_are_relative_to_the_configuration(
    tmp_path: Path,
) -> None:
    found = load(
        "[endpoint]\nchat_template = 'chat.jinja'\nssl_certfile = 'certs/a.pem'\n",
        tmp_path,
        LLUMCTL_ENDPOINT_ALLOWED_ORIGINS="https://a, https://b",
        LLUMCTL_ENDPOINT_OVERRIDE_GENERATION_CONFIG='{"top_k": 5}',
        LLUMCTL_ENDPOINT_SSL_CERT_REQS="0",
        LLUMCTL_ENDPOINT_ENABLE_AUTO_TOOL_CHOICE="false",
    ).endpoint
    assert found.allowed_origins == ("https://a", "https://b")
    assert found.override_generation_config.top_k == 5
    assert found.ssl_cert_reqs == 0
    assert found.enable_auto_tool_choice is False
    assert found.chat_template == str(tmp_path / "chat.jinja")
    assert found.ssl_certfile == str(tmp_path / "certs/a.pem")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("middleware = ['x']", "c.toml:2: endpoint.middleware is refused: it is code in front"),
        ("enable_log_outputs = true", "endpoint.enable_log_outputs is refused: logs must not"),
        ("override_generation_config = {top = 2}", "override_generation_config.top"),
        ("allowed_origins = 3", "it must be an array of strings"),
        ("generation_config = 'nowhere'", "has no generation_config.json"),
    ],
)
def test_mistakes_in_the_file_are_told_with_their_line(tmp_path: Path, line: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(f"[endpoint]\n{line}\n", tmp_path)
    assert str(tmp_path / "c.toml") + ":2" in caught.value.message
    assert why in caught.value.message


# -- code ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "[endpoint]\ntool_parser_plugin = 'p.py'\n",
        "[endpoint]\nreasoning_parser_plugin = 'p.py'\n",
        "[engine]\nlogits-processors = ['m:f']\n",
        "[engine]\nstructured_outputs_config = {reasoning_parser_plugin = 'p.py'}\n",
    ],
)
def test_code_comes_out_of_a_private_file(tmp_path: Path, text: str) -> None:
    load(text, tmp_path)
    for mode in (0o640, 0o604):
        with pytest.raises(UsageError, match="names code to run") as caught:
            load(text, tmp_path, mode)
        assert caught.value.hint == f"chmod 600 {tmp_path / 'c.toml'}"
        assert str(tmp_path / "c.toml") + ":2" in caught.value.message


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LLUMCTL_ENDPOINT_TOOL_PARSER_PLUGIN", "p.py"),
        ("LLUMCTL_ENGINE_LOGITS_PROCESSORS", '["m:f"]'),
        ("--engine-arg", 'io_processor_plugin="x"'),
    ],
)
def test_code_comes_out_of_no_variable_and_no_flag(variable: str, value: str) -> None:
    is_flag = variable.startswith("-")
    environ, engine_args = ({}, [value]) if is_flag else ({variable: value}, [])
    with pytest.raises(UsageError, match=rf"{variable}: .* names code to run"):
        llumctl_settings.load(config=None, environ=environ, engine_args=engine_args)


# -- what vLLM gets -----------------------------------------------------------------------


def test_engines_and_frontends_get_what_is_theirs() -> None:
    def gets(**given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        options = EndpointOptions.model_validate(given)
        return engine_options(options), frontend_options(options)

    hermes: dict[str, Any] = {"tool_call_parser": "hermes"}
    assert gets(**hermes) == ({}, hermes | {"enable_auto_tool_choice": True})
    never = hermes | {"enable_auto_tool_choice": False}
    assert gets(**never) == ({}, never)
    engines = {"reasoning_parser": "qwen3", "override_generation_config": {"temperature": 0.5}}
    frontends = {"enable_force_include_usage": True, "allowed_origins": ["https://a"]}
    given = frontends | {"allowed_origins": "https://a"}
    assert gets(**engines, **given) == (engines, frontends | {"enable_auto_tool_choice": False})
    whole, _ = gets(override_generation_config={"max_new_tokens": 7})
    assert type(whole["override_generation_config"]["max_new_tokens"]) is int


def test_what_is_refused_later_is_told_with_where_it_was_written(
    started: list[Any], tmp_path: Path, capsys: Captured
) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[engine]\nmax-num-seqs = 'x'\n")
    for flags, where in (([], f"{file}:2"), (["--engine-arg", "max-num-seqs=x"], "--engine-arg")):
        started.append(WrongSettingError(("engine", "max_num_seqs"), "must be an integer"))
        assert run(["up", "--config", str(file), *flags]) == 2
        wanted = f"error: {where}: engine.max_num_seqs must be an integer\n"
        assert capsys.readouterr().err.startswith(wanted)


# -- TLS ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "url"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"ssl_certfile": "/c/a b.pem", "host": "0.0.0.0"}, "https://127.0.0.1:8000"),
    ],
)
def test_the_certificate_is_in_the_url_the_run_state_and_the_curl_line(
    tmp_path: Path, table: dict[str, str], url: str
) -> None:
    from llumctl.commands.up import endpoint_text

    settings = Settings.model_validate({"endpoint": table})
    made = plan(tmp_path).model_copy(update={"settings": settings})
    assert endpoint_url(made) == url
    state = state_of(made, {})
    assert state.endpoint_certificate == table.get("ssl_certfile", "")
    assert RunState.from_json(json.dumps(asdict(state))) == state
    assert (" --cacert '/c/a b.pem' " in endpoint_text(settings, cluster())) == bool(table)
