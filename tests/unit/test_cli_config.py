"""`llumctl config`: which file is used, what is in effect and where it comes from, the schema."""

import json
import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controller.api.settings.settings import Settings
from controller.api.settings.table import kinds
from controller.core.settings import SchedulerSettings
from llumctl.config import settings, toml_text
from tests.unit.cli_support import Cli

FILE = """
[endpoint]
port = 9001

[[priority]]
name = "all"
rank = 0

[engine]
max-model-len = 4096
x = {a = [1, 2.5, true], "b c" = "\\"\\u007f"}

[keys]
row_down = 'n, down'
"""
SHOW = ("show", "--config", "c.toml")
scalars = st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.dates()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(FILE)


def test_the_path_and_where_it_was_looked_for(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    default = Path(os.environ["XDG_CONFIG_HOME"]) / "llumctl" / "config.toml"
    looked = "--config: not set\nLLUMCTL_CONFIG: {}\nthe default one: {} ({})\n".format
    assert cli("config", "path") == ("", looked("not set", default, "absent"))
    default.parent.mkdir(parents=True)
    default.write_text("[")
    assert cli.out("config", "path") == f"{default}\n", "it need not parse"
    monkeypatch.setenv("LLUMCTL_CONFIG", "c.toml")
    assert cli("config", "path", "-v") == ("c.toml\n", looked("c.toml (used)", default, "not used"))
    assert cli.out("config", "path", "--config", str(default)) == f"{default}\n"


def test_show_is_a_config_file_of_the_same_settings(cli: Cli) -> None:
    for options in ((), ("--origin",)):
        Path("shown.toml").write_text(cli.out("config", *SHOW, *options))
        again = settings.load(config=Path("shown.toml"), environ={})
        assert again == settings.load(config=Path("c.toml"), environ={})
        assert again.engine["x"] == {"a": [1, 2.5, True], "b c": '"\x7f'}


def test_show_defaults(cli: Cli) -> None:
    shown = cli.out("config", "show")
    assert "# instances = null\n" in shown
    assert tomllib.loads(shown)["control"] == Settings().control.model_dump()
    whole = json.loads(cli.out("config", "show", "-o", "json"))
    assert whole == {"schema_version": 1, "settings": Settings().model_dump(mode="json")}


def test_origins(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in (("CLUSTER_NAME", "prod"), ("ENGINE_SEED", "3"), ("KEYS_QUIT", "Q")):
        monkeypatch.setenv(f"LLUMCTL_{key}", value)
    assert set(cli.out("config", *SHOW, "--origin").splitlines()) >= {
        'name = "prod"  # LLUMCTL_CLUSTER_NAME',
        "port = 9001  # c.toml:3",
        "port = 8700  # default",
        "# target_load_tokens = null  # default",
        "max_model_len = 4096  # c.toml:10",
        "seed = 3  # LLUMCTL_ENGINE_SEED",
        'row_down = "n, down"  # c.toml:14',
        'quit = "Q"  # LLUMCTL_KEYS_QUIT',
    }
    whole = json.loads(cli.out("config", *SHOW, "--origin", "-o", "json"))
    wanted = {"endpoint.port": "c.toml:3", "priority.0.name": "c.toml:6"}
    assert whole["origins"].items() >= wanted.items()


SECRET = ("hf_token", "token", "API_KEY", "x-api-key", "apikey", "auth_key", "a_password", "secret")
OPEN = ("tokenizer", "max_tokens", "keys", "api_key_file", "monkey", "max_num_tokens")


def test_secrets_are_never_shown(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Path("keys").absolute()
    keys.write_text("s3cret\n")
    keys.chmod(0o600)
    named = ", ".join([*(f"{n} = 's3cret'" for n in SECRET), *(f"{n} = 'seen'" for n in OPEN)])
    Path("c.toml").write_text(
        f"[endpoint]\napi_key_file = '{keys}'\n[engine]\nhf_token = 's3cret'\n"
        f"max_num_batched_tokens = 7\nkv = {{nested = [{{{named}, token_id = 7}}]}}\n"
    )
    monkeypatch.setenv("LLUMCTL_ENGINE_ADMIN_PASSWORD", "s3cret")
    for format_ in ("toml", "json", "yaml"):
        shown = cli.out("config", *SHOW, "--origin", "-o", format_)
        assert "s3cret" not in shown
        assert shown.count("(hidden)") == 2 + len(SECRET)
        assert shown.count("seen") == len(OPEN)
        assert str(keys) in shown


@given(values)
@example(float("inf"))
def test_toml_values_survive(value: object) -> None:
    assert tomllib.loads(f"x = {toml_text.value_text(value)}")["x"] == value


def test_schema_describes_every_table_and_key(cli: Cli) -> None:
    schema = json.loads(cli.out("config", "schema"))
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert set(schema["properties"]) == set(Settings.model_fields)
    endpoint = schema["$defs"]["EndpointTable"]
    assert endpoint["additionalProperties"] is False
    assert endpoint["properties"]["port"]["maximum"] == 65535
    assert set(schema["$defs"]["SchedulerSettings"]["properties"]) == set(kinds(SchedulerSettings))
