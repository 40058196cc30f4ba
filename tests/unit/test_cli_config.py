"""`llumctl config`: which file is used, what is in effect and where it comes from, the schema."""

import json
import tomllib
from pathlib import Path

import pytest
import yaml

from controller.api.settings.settings import Settings
from controller.api.settings.table import kinds
from controller.core.settings import SchedulerSettings
from llumctl.app import run
from llumctl.commands import config
from llumctl.config import settings, toml_text

Captured = pytest.CaptureFixture[str]

FILE = """
[endpoint]
port = 9001

[[priority]]
name = "all"
rank = 0

[engine]
max-model-len = 4096
hf_token = "s3cret"
"""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LLUMCTL_CLUSTER_NAME", "LLUMCTL_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def told(capsys: Captured, *arguments: str) -> str:
    assert run(["config", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def default_file(tmp_path: Path) -> Path:
    path = tmp_path / "xdg" / "llumctl" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(FILE)
    return path


def test_path_of_the_default_file(tmp_path: Path, capsys: Captured) -> None:
    path = default_file(tmp_path)
    assert told(capsys, "path") == f"{path}\n"


def test_path_of_a_file_that_does_not_parse(tmp_path: Path, capsys: Captured) -> None:
    path = default_file(tmp_path)
    path.write_text("[")
    assert told(capsys, "path") == f"{path}\n"


def test_path_when_there_is_none_tells_where_it_was_looked_for(
    tmp_path: Path, capsys: Captured
) -> None:
    assert run(["config", "path"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "--config: not set",
        "LLUMCTL_CONFIG: not set",
        f"the default one: {tmp_path}/xdg/llumctl/config.toml (absent)",
    ]


def test_path_tells_all_candidates(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = default_file(tmp_path)
    (tmp_path / "mine.toml").write_text("")
    monkeypatch.setenv("LLUMCTL_CONFIG", "mine.toml")
    assert run(["config", "path", "-v"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "mine.toml\n"
    assert captured.err.splitlines() == [
        "--config: not set",
        "LLUMCTL_CONFIG: mine.toml (used)",
        f"the default one: {path} (not used)",
    ]
    assert told(capsys, "path", "--config", str(path)) == f"{path}\n"


def test_path_that_was_asked_for_and_is_absent(capsys: Captured) -> None:
    assert run(["config", "path", "--config", "none.toml"]) == 2
    assert capsys.readouterr().err == "error: none.toml: there is no such config file (--config)\n"


def test_show_is_a_config_file_of_the_same_settings(tmp_path: Path, capsys: Captured) -> None:
    text = FILE.replace('hf_token = "s3cret"', 'x = {a = [1, 2.5, true], "b c" = "\\"\\u007f"}')
    (tmp_path / "c.toml").write_text(text)
    for options in ((), ("--origin",)):
        shown = tmp_path / "shown.toml"
        shown.write_text(told(capsys, "show", "--config", "c.toml", *options))
        again = settings.load(config=shown, environ={})
        assert again == settings.load(config=tmp_path / "c.toml", environ={})
        assert again.engine["x"] == {"a": [1, 2.5, True], "b c": '"\x7f'}


def test_show_defaults(capsys: Captured) -> None:
    shown = told(capsys, "show")
    assert "# instances = null\n" in shown
    assert tomllib.loads(shown)["control"] == Settings().control.model_dump()
    whole = json.loads(told(capsys, "show", "-o", "json"))
    assert whole == {"schema_version": 1, "settings": Settings().model_dump(mode="json")}


def test_origins(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.toml").write_text(FILE)
    monkeypatch.setenv("LLUMCTL_CLUSTER_NAME", "prod")
    monkeypatch.setenv("LLUMCTL_ENGINE_SEED", "3")
    arguments = ("show", "--config", "c.toml", "--origin")
    lines = told(capsys, *arguments).splitlines()
    assert 'name = "prod"  # LLUMCTL_CLUSTER_NAME' in lines
    assert "port = 9001  # c.toml:3" in lines
    assert "port = 8700  # default" in lines
    assert "rank = 0  # c.toml:7" in lines
    assert "# target_load_tokens = null  # default" in lines
    assert "max_model_len = 4096  # c.toml:10" in lines
    assert "seed = 3  # LLUMCTL_ENGINE_SEED" in lines
    origins = json.loads(told(capsys, *arguments, "-o", "json"))["origins"]
    assert origins["endpoint.port"] == "c.toml:3"
    assert origins["endpoint.host"] == "default"
    assert origins["priority.0.name"] == "c.toml:6"
    assert origins["engine.max_model_len"] == "c.toml:10"
    whole = yaml.safe_load(told(capsys, *arguments, "-o", "yaml"))
    assert whole["origins"] == origins


def test_keys_of_the_dashboard(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.toml").write_text("[keys]\nsort = 'o'\nrow_down = 'n, down'\n")
    monkeypatch.setenv("LLUMCTL_KEYS_QUIT", "Q")
    lines = told(capsys, "show", "--config", "c.toml", "--origin").splitlines()
    assert 'sort = "o"  # c.toml:2' in lines
    assert 'row_down = "n, down"  # c.toml:3' in lines
    assert 'quit = "Q"  # LLUMCTL_KEYS_QUIT' in lines
    whole = json.loads(told(capsys, "show", "--config", "c.toml", "-o", "json"))
    assert whole["settings"]["keys"] == {"sort": "o", "row_down": "n, down", "quit": "Q"}
    schema = json.loads(told(capsys, "schema"))["properties"]["keys"]
    assert schema["additionalProperties"] == {"type": "string"}
    assert "llumctl top" in schema["description"]


def test_secrets_are_never_shown(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("s3cret\n")
    keys.chmod(0o600)
    text = f"[endpoint]\napi_key_file = '{keys}'\n[engine]\nhf_token = 's3cret'\n"
    text += "tokenizer = 'seen'\nmax_num_batched_tokens = 7\n"
    text += "kv = {nested = [{api_key = 's3cret', secret = 's3cret', size = 1}]}\n"
    (tmp_path / "c.toml").write_text(text)
    monkeypatch.setenv("LLUMCTL_ENGINE_ADMIN_PASSWORD", "s3cret")
    for format_ in ("toml", "json", "yaml"):
        shown = told(capsys, "show", "--config", "c.toml", "--origin", "-o", format_)
        assert "s3cret" not in shown
        assert shown.count("(hidden)") == 4
        assert str(keys) in shown
        assert "seen" in shown


def test_show_of_settings_that_up_would_refuse(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "c.toml").write_text("[endpoint]\nprot = 1\n")
    assert run(["config", "show", "--config", "c.toml"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: c.toml:2: unknown key endpoint.prot; did you mean")


def test_what_toml_cannot_say_is_a_comment(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLUMCTL_ENGINE_X", '{"a": null}')
    shown = told(capsys, "show")
    assert '# x = {"a": null}\n' in shown
    tomllib.loads(shown)


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1.5,
        1e300,
        float("inf"),
        "",
        'quo"te\\ \n\t\x00\x1f\x7f 模型',
        [],
        [[1], ["a"]],
        {"": 1, "a.b": {"c": False}},
        *tomllib.loads("a=1979-05-27\nb=07:32:00\nc=1979-05-27T07:32:00Z").values(),
    ],
)
def test_toml_values_survive(value: object) -> None:
    assert tomllib.loads(f"x = {toml_text.value_text(value)}")["x"] == value


def test_toml_has_no_null() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        toml_text.value_text({"a": [None]})


def test_schema_describes_every_table_and_key(capsys: Captured) -> None:
    schema = json.loads(told(capsys, "schema"))
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert set(schema["properties"]) == set(Settings.model_fields)
    endpoint = schema["$defs"]["EndpointTable"]
    assert endpoint["additionalProperties"] is False
    assert endpoint["properties"]["port"]["maximum"] == 65535
    assert "mode 0600" in endpoint["properties"]["api_key_file"]["description"]
    assert set(schema["$defs"]["SchedulerSettings"]["properties"]) == set(kinds(SchedulerSettings))


def test_secret_names() -> None:
    hidden = config._is_secret
    for name in ("hf_token", "token", "API_KEY", "x-api-key", "apikey", "auth_key", "a_password"):
        assert hidden(name, "x"), name
    for name in ("tokenizer", "max_tokens", "keys", "api_key_file", "monkey", "max_num_tokens"):
        assert not hidden(name, "x"), name
    assert not hidden("hf_token", True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing command."),
        (("pth",), "No such command 'pth'."),
        (("show", "-o", "table"), "Invalid value for '-o' / '--output'"),
        (("show", "--config", "none.toml"), "none.toml: there is no such config file"),
        (("schema", "x"), "Got unexpected extra argument"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], message: str, capsys: Captured) -> None:
    assert run(["config", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {message}")
