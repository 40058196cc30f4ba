"""vLLM's options of the endpoint, from flag, variable and file to what vLLM gets."""

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


def test_the_help_names_every_option_once_but_those_of_code(
    started: list[Any], capsys: Captured
) -> None:
    for flags in (["--served-model-name", " , "], ["--tool-parser-plugin", "p.py"]):
        assert run(["up", *flags]) == 2
    assert started == []
    assert run(["up", "--help"]) == 0
    text = capsys.readouterr().out
    words = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
    for name, info in EndpointOptions.model_fields.items():
        flag = name.replace("_", "-")
        times = words.count(f"--{flag}") + words.count(f"--[no-]{flag}")
        assert times == (Code not in info.metadata), name


def test_variables_become_settings_and_files_are_relative_to_the_configuration(
    tmp_path: Path,
) -> None:
    found = load(
        "[endpoint]\nchat_template = 'chat.jinja'\n",
        tmp_path,
        LLUMCTL_ENDPOINT_ALLOWED_ORIGINS="https://a, https://b",
        LLUMCTL_ENDPOINT_OVERRIDE_GENERATION_CONFIG='{"top_k": 5}',
        LLUMCTL_ENDPOINT_ENABLE_AUTO_TOOL_CHOICE="false",
    ).endpoint
    assert found.allowed_origins == ("https://a", "https://b")
    assert found.override_generation_config.top_k == 5
    assert found.enable_auto_tool_choice is False
    assert found.chat_template == str(tmp_path / "chat.jinja")


def test_mistakes_in_the_file_are_told_with_their_line(tmp_path: Path) -> None:
    for line, why in (
        ("middleware = ['x']", "c.toml:2: endpoint.middleware is refused: it is code in front"),
        ("enable_log_outputs = true", "endpoint.enable_log_outputs is refused: logs must not"),
        ("override_generation_config = {top = 2}", "override_generation_config.top"),
        ("allowed_origins = 3", "it must be an array of strings"),
        ("generation_config = 'nowhere'", "has no generation_config.json"),
    ):
        with pytest.raises(UsageError) as caught:
            load(f"[endpoint]\n{line}\n", tmp_path)
        assert str(tmp_path / "c.toml") + ":2" in caught.value.message
        assert why in caught.value.message


# -- code ---------------------------------------------------------------------------------


def test_code_comes_out_of_a_private_file(tmp_path: Path) -> None:
    for text in (
        "[endpoint]\ntool_parser_plugin = 'p.py'\n",
        "[endpoint]\nreasoning_parser_plugin = 'p.py'\n",
        "[engine]\nlogits-processors = ['m:f']\n",
        "[engine]\nstructured_outputs_config = {reasoning_parser_plugin = 'p.py'}\n",
    ):
        load(text, tmp_path)
        for mode in (0o640, 0o604):
            with pytest.raises(UsageError, match="names code to run") as caught:
                load(text, tmp_path, mode)
            assert caught.value.hint == f"chmod 600 {tmp_path / 'c.toml'}"
            assert str(tmp_path / "c.toml") + ":2" in caught.value.message


def test_code_comes_out_of_no_variable_and_no_flag() -> None:
    for variable, value in (
        ("LLUMCTL_ENDPOINT_TOOL_PARSER_PLUGIN", "p.py"),
        ("LLUMCTL_ENGINE_LOGITS_PROCESSORS", '["m:f"]'),
        ("--engine-arg", 'io_processor_plugin="x"'),
    ):
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


def test_the_certificate_is_in_the_url_the_run_state_and_the_curl_line(tmp_path: Path) -> None:
    from llumctl.commands.up import endpoint_text

    assert endpoint_url(plan(tmp_path)) == "http://127.0.0.1:8000"
    table = {"ssl_certfile": "/c/a b.pem", "host": "0.0.0.0"}
    settings = Settings.model_validate({"endpoint": table})
    made = plan(tmp_path).model_copy(update={"settings": settings})
    assert endpoint_url(made) == "https://127.0.0.1:8000"
    assert state_of(made, {}).endpoint_certificate == "/c/a b.pem"
    assert " --cacert '/c/a b.pem' " in endpoint_text(settings, cluster())
