"""vLLM's options of the endpoint, from flag, variable and file to what vLLM gets."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
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
from llumctl.app import run
from llumctl.config import settings as llumctl_settings
from tests.unit.cli_support import cluster

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
    "--enable-force-include-usage": ("enable_force_include_usage", True),
    '--default-chat-template-kwargs {"a":[1]}': ("default_chat_template_kwargs", {"a": [1]}),
    "--allowed-origins https://a,https://b": ("allowed_origins", ("https://a", "https://b")),
    "--ssl-cert-reqs 2": ("ssl_cert_reqs", 2),
    "--sse-keep-alive-interval 15": ("sse_keep_alive_interval", 15),
    "--fingerprint-mode none": ("fingerprint_mode", "none"),
    "--served-model-name a,b": ("served_model_name", ("a", "b")),
}


def test_flags_become_settings(started: list[Settings]) -> None:
    assert run(["up", *" ".join(FLAGS).split()]) == 0
    (settings,) = started
    for name, value in FLAGS.values():
        assert getattr(settings.endpoint, name) == value, name
    sampling = ["--override-generation-config", '{"temperature": 0.5}']
    started.clear()
    assert run(["up", *sampling]) == 0
    assert started[0].endpoint.override_generation_config.temperature == 0.5


def test_flags_win_over_the_file(started: list[Settings], tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[endpoint]\nenable_force_include_usage = true\nroot_path = '/a'\n")
    assert run(["up", "--config", str(file), "--no-enable-force-include-usage"]) == 0
    assert not started[0].endpoint.enable_force_include_usage
    assert started[0].endpoint.root_path == "/a"


@pytest.mark.parametrize("nothing", ["", " , "])
def test_a_flag_that_names_nothing_starts_nothing(
    started: list[Settings], capsys: Captured, nothing: str
) -> None:
    assert run(["up", "--served-model-name", nothing]) == 2
    assert started == []
    assert "served_model_name is refused: it names nothing" in capsys.readouterr().err


def test_the_help_names_every_option_once_but_those_of_code(capsys: Captured) -> None:
    assert run(["up", "--help"]) == 0
    text = capsys.readouterr().out
    for title in ("Tools and reasoning", "Chat templates", "Answers", "Proxies", "TLS"):
        assert title in text
    for name, info in EndpointOptions.model_fields.items():
        flag = name.replace("_", "-")
        times = sum(
            line.split()[0] in (f"--{flag}", f"--[no-]{flag}")
            for line in text.splitlines()
            if line.startswith("  --")
        )
        assert times == (Code not in info.metadata), name


def test_variables_become_settings(tmp_path: Path) -> None:
    found = load(
        "",
        tmp_path,
        LLUMCTL_ENDPOINT_ALLOWED_ORIGINS="https://a, https://b",
        LLUMCTL_ENDPOINT_OVERRIDE_GENERATION_CONFIG='{"top_k": 5}',
        LLUMCTL_ENDPOINT_SSL_CERT_REQS="0",
        LLUMCTL_ENDPOINT_ENABLE_AUTO_TOOL_CHOICE="false",
    ).endpoint
    assert found.allowed_origins == ("https://a", "https://b")
    assert found.override_generation_config.top_k == 5
    assert found.enable_auto_tool_choice is False


def test_files_are_relative_to_the_configuration(tmp_path: Path) -> None:
    text = "[endpoint]\nchat_template = 'chat.jinja'\nssl_certfile = 'certs/a.pem'\n"
    found = load(text, tmp_path).endpoint
    assert found.chat_template == str(tmp_path / "chat.jinja")
    assert found.ssl_certfile == str(tmp_path / "certs/a.pem")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("middleware = ['x']", "c.toml:2: endpoint.middleware is refused: it is code in front"),
        ("enable_log_outputs = true", "endpoint.enable_log_outputs is refused: logs must not"),
        ("tool_call_parsr = 'hermes'", "did you mean endpoint.tool_call_parser?"),
        ("tool_strict_level = 'most'", "must be 'auto', 'function' or 'parameter', not 'most'"),
        ("override_generation_config = {top_p = 2}", "top_p must be at most 1, not 2"),
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

CODE = (
    "[endpoint]\ntool_parser_plugin = 'p.py'\n",
    "[endpoint]\nreasoning_parser_plugin = 'p.py'\n",
    "[engine]\nlogits_processors = ['m:f']\n",
    "[engine]\nlogits-processors = ['m:f']\n",
    "[engine]\nstructured_outputs_config = {reasoning_parser_plugin = 'p.py'}\n",
)


@pytest.mark.parametrize("text", CODE)
def test_code_comes_out_of_a_private_file(tmp_path: Path, text: str) -> None:
    load(text, tmp_path)
    for mode in (0o644, 0o660, 0o604):
        with pytest.raises(UsageError, match="names code to run") as caught:
            load(text, tmp_path, mode)
        assert caught.value.hint == f"chmod 600 {tmp_path / 'c.toml'}"
        assert str(tmp_path / "c.toml") + ":2" in caught.value.message


def test_code_comes_out_of_no_variable_and_no_flag(tmp_path: Path, capsys: Captured) -> None:
    for variable, value in (
        ("LLUMCTL_ENDPOINT_TOOL_PARSER_PLUGIN", "p.py"),
        ("LLUMCTL_ENGINE_LOGITS_PROCESSORS", '["m:f"]'),
    ):
        with pytest.raises(UsageError, match=rf"{variable}: .* names code to run"):
            load("[cluster]\n", tmp_path, **{variable: value})
    file = tmp_path / "c.toml"
    with pytest.raises(UsageError, match=r"--engine-arg: .* names code to run"):
        llumctl_settings.load(config=file, environ={}, engine_args=['io_processor_plugin="x"'])
    assert run(["up", "--tool-parser-plugin", "p.py"]) == 2
    assert "No such option" in capsys.readouterr().err


# -- what vLLM gets -----------------------------------------------------------------------


def options(**given: Any) -> EndpointOptions:
    return EndpointOptions.model_validate(given)


def test_the_model_calls_tools_by_itself_where_there_is_a_parser() -> None:
    found = frontend_options(options(tool_call_parser="hermes"))
    assert found == {"tool_call_parser": "hermes", "enable_auto_tool_choice": True}
    never = options(tool_call_parser="hermes", enable_auto_tool_choice=False)
    assert frontend_options(never)["enable_auto_tool_choice"] is False


def test_engines_get_what_is_theirs() -> None:
    given = options(
        reasoning_parser="qwen3",
        override_generation_config={"temperature": 0.5},
        enable_force_include_usage=True,
        allowed_origins="https://a",
    )
    whole = engine_options(options(override_generation_config={"max_new_tokens": 7}))
    assert type(whole["override_generation_config"]["max_new_tokens"]) is int
    assert engine_options(given) == {
        "reasoning_parser": "qwen3",
        "override_generation_config": {"temperature": 0.5},
    }
    assert frontend_options(given) == {
        "enable_force_include_usage": True,
        "allowed_origins": ["https://a"],
        "enable_auto_tool_choice": False,
    }


def test_several_names_of_the_model() -> None:
    found = Settings.model_validate({"endpoint": {"served_model_name": ["a", "b"]}})
    assert (found.model_names, found.served_model_name) == (("a", "b"), ["a", "b"])
    assert Settings().served_model_name == "embedded"


def test_what_is_refused_later_is_told_with_where_it_was_written(
    started: list[Any], tmp_path: Path, capsys: Captured
) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[engine]\nmax-num-seqs = 'x'\n")
    started.append(WrongSettingError(("engine", "max_num_seqs"), "must be an integer"))
    assert run(["up", "--config", str(file)]) == 2
    wanted = f"error: {file}:2: engine.max_num_seqs must be an integer\n"
    assert capsys.readouterr().err.startswith(wanted)
    started.append(WrongSettingError(("engine", "max_num_seqs"), "must be an integer"))
    assert run(["up", "--config", str(file), "--engine-arg", "max-num-seqs=x"]) == 2
    assert "--engine-arg: engine.max_num_seqs must be" in capsys.readouterr().err


# -- TLS ----------------------------------------------------------------------------------


def test_the_url_is_https_where_there_is_a_certificate() -> None:
    from controller.main.plan import endpoint_url

    for table, url in (
        ({}, "http://127.0.0.1:8000"),
        ({"ssl_certfile": "a.pem", "host": "0.0.0.0"}, "https://127.0.0.1:8000"),
    ):
        plan: Any = SimpleNamespace(settings=Settings.model_validate({"endpoint": table}))
        assert endpoint_url(plan) == url


def test_bench_is_told_of_the_certificate(tmp_path: Path) -> None:
    from controller.main.plan import state_of

    table = Settings.model_validate({"endpoint": {"ssl_certfile": "/c/a.pem"}})
    plan: Any = SimpleNamespace(
        settings=table,
        nonce="n",
        control_token="t",
        namespace="n",
        log_dir="l",
        temp_dir="t",
        state_dir=str(tmp_path),
        started_at_s=1.0,
    )
    state = state_of(plan, {})
    assert state.endpoint_certificate == "/c/a.pem"
    assert RunState.from_json(json.dumps(asdict(state))) == state


def test_the_curl_line_names_the_certificate() -> None:
    from llumctl.commands.up import endpoint_text

    settings = Settings.model_validate({"endpoint": {"ssl_certfile": "/c/a b.pem"}})
    assert " --cacert '/c/a b.pem' " in endpoint_text(settings, cluster())
