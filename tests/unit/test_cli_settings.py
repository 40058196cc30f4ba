"""Settings from file, environment and flags: precedence, and every kind of bad input. Values set in
a TOML text: the new value is read from it, and every other byte stays."""

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from controller.api.errors import LlumctlError
from controller.api.settings.setting_values import live_settings
from controller.api.settings.settings import Settings
from controller.api.text.quantities import setting_value
from llumctl.config import config_file, settings, toml_text
from llumctl.config.toml_text import CannotEditError, Value, set_value


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.chdir(tmp_path)


def load(
    text: str | bytes | None = None,
    environ: Mapping[str, str] | None = None,
    flags: settings.Flags | None = None,
    engine_args: tuple[str, ...] = (),
    assigned: tuple[str, ...] = (),
) -> Settings:
    path = None
    if text is not None:
        path = Path("c.toml")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return settings.load_with_origins(path, flags or {}, engine_args, environ or {}, assigned)[0]


def refusal(*args: Any, **kwargs: Any) -> LlumctlError:
    with pytest.raises(LlumctlError) as caught:
        load(*args, **kwargs)
    assert caught.value.exit_code == 2
    return caught.value


LEVEL = "[[priority]]\nname='a'\nrank=0\n"
EMULATED = "[cluster]\nengine = 'emulated'\n"
BAD_FILES = [
    # text, the line that is named, what the message must contain
    ("[endpoint]\n\nprot = 1\n", 3, "unknown key endpoint.prot; did you mean endpoint.p"),
    ("[endpont]\nport = 1\n", 1, "unknown table endpont; did you mean endpoint?"),
    ("port = 1\n", 1, "did you mean endpoint.port?"),
    ("[endpoint]\nstall_timeout_s = 1\n", 2, "did you mean scheduler.stall_timeout_s?"),
    ("[endpoint]\nzzz = 1\n", 2, "unknown key endpoint.zzz"),
    ("[endpoint]\nport = 1\nport = 2\n", 3, "duplicate key endpoint.port (first on line"),
    ("[endpoint]\n[control]\n\n[endpoint]\n", 4, "duplicate key endpoint (first on line"),
    ("endpoint = {port = 1, port = 2}", 1, "duplicate key endpoint.port"),
    ("[engine]\nmax-model-len = 1\nmax_model_len = 2\n", 3, "duplicate key engine.max_"),
    ("[endpoint]\nport = '80'\n", 2, "endpoint.port must be an integer, not '80'"),
    ("[emulated]\nmode = 'chunk'\n", 2, "emulated.mode must be 'chunked' or"),
    ("[endpoint]\nport = 70000\n", 2, "must be at most 65535, not 70000"),
    ("[scheduler]\n\n\ngrace_s = -1\n", 4, "must be at least 0, not -1"),
    ("[scheduler]\nhold_timeout_s = 0\n", 2, "must be greater than 0, not 0"),
    ("[scheduler]\nhold_timeout_s = nan\n", 2, "must be a finite number, not nan"),
    ("[endpoint]\nport = 9" + "9" * 5000, 2, "a number of too many digits"),
    ("[cluster]\nname = 'Up'\n", 2, "cluster.name 'Up' does not match"),
    ("[cluster]\nmodel = ''\n", 2, "cluster.model is empty"),
    ("control = 5\n", 1, "control must be a table, not 5"),
    ("engine = 5\n", 1, "engine must be a table"),
    ("[priority]\nname = 'x'\n", 1, "must be an array of tables"),
    ("priority = [1]\n", 1, "priority must be a table, not 1"),
    ("[[priority]]\nname='a'\nrank=0\n[[priority]]\nname='b'\n", 4, "needs the key rank"),
    ("\n[[priority]]\nname='a'\nrnk=0\n", 2, "did you mean priority.rank?"),
    ("\n[[priority]]\nname='a'\nrank=1\n", 2, "one priority level must have rank 0"),
    (LEVEL + "[[priority]]\nname='a'\nrank=1\n", 1, "two priority levels have the same name"),
    (LEVEL + "[[priority]]\nname='b'\nrank=0\n", 1, "two priority levels have the same rank"),
    ("[cluster]\ninstances = 0\n", 2, "a cluster has at least one instance"),
    ("[models.m]\ninstances = 0\nmodel = 'x'\n", 1, "servers only, which have no model"),
    ("[endpoint]\nport = \n", 2, "not valid TOML: Invalid value"),
    ("[endpoint]\nx = [1,\n2\n", 3, "not valid TOML: Unclosed array"),
    ("\x7fELF = 1\n", 1, "not valid TOML"),
    ("endpoint:\n  port: 1\n", 1, "not valid TOML: Expected '=' after a key"),
    ("x = " + "[" * 5000 + "\n", 1, "nested too deeply"),
    (b"[endpoint]\n# \xff\n", 2, "not UTF-8 (byte 0xff)"),
    ("[endpoint]\nport = 8700\n", 2, "control.port and endpoint.port are both 8700"),
    ("[endpoint]\nhost = '0.0.0.0'\n", 2, "without endpoint.api_key_file anybody"),
    ("[endpoint]\nhost = ''\n", 2, "without endpoint.api_key_file anybody"),
    ('[endpoint]\nhost = "\\u001b[2J"\n', 2, "endpoint.host '\\x1b[2J' is open"),
    ("[control]\nport = 1\nhost = '::'\n", 3, "control.host '::' is not a loopback"),
    ("[endpoint]\napi_key_file = 'none'\n", 2, "cannot read"),
    ('[endpoint]\napi_key_file = "\\u0000"\n', 2, "cannot read"),
    (EMULATED + "[engine]\nseed = 1\n", 4, "engine.seed is an argument of vLLM's engine"),
]


@pytest.mark.parametrize(("text", "line", "part"), BAD_FILES)
def test_bad_file_names_file_line_and_cause(text: str | bytes, line: int, part: str) -> None:
    message = refusal(text).message
    assert message.startswith(f"c.toml:{line}:"), message
    assert part in message


def test_all_that_is_wrong_is_told_in_one_go() -> None:
    error = refusal("[endpoint]\nport = 0\nhost = 1\n[x]\n")
    assert [line.strip().split(": ")[0] for line in error.message.splitlines()] == [
        "c.toml:3",
        "c.toml:2",
        "c.toml:4",
    ]


def test_huge_file_is_refused() -> None:
    assert "larger than" in refusal("#" * (config_file.MAX_BYTES + 1)).message


def test_bad_variable_is_named() -> None:
    for variable, value, part in (
        ("LLUMCTL_ENDPOINT_PORT", "x", "must be an integer, not 'x'"),
        ("LLUMCTL_ENDPOINT_PROT", "1", "did you mean endpoint.po"),
        ("LLUMCTL_SCHEDULER_GRACE_S", "nan", "must be a finite number"),
        ("LLUMCTL_PRIORITY_NAME", "a", "only be set in the config file"),
        ("LLUMCTL_ENDPOINT_HOST", "10.0.0.1", "open to other machines"),
        ("LLUMCTL_PORT", "1", "there is no such setting; did you mean LLUMCTL_ENDPOINT_PORT?"),
        ("LLUMCTL_ENDPONT_PORT", "1", "no such setting; did you mean LLUMCTL_ENDPOINT_PORT?"),
        ("LLUMCTL_MAX_MOVES", "1", "did you mean LLUMCTL_MIGRATION_MAX_MOVES?"),
        ("LLUMCTL_", "1", "there is no such setting"),
    ):
        error = refusal("[cluster]\nfrontends = 2\n", {variable: value})
        assert error.message.startswith(f"{variable}: ")
        assert part in error.message
        assert "no such setting" not in part or error.hint.startswith(f"unset {variable}")


@pytest.mark.parametrize("service", ["LLUMCTL", "LLUMCTL_ENDPOINT", "LLUMCTL_MY_MODEL"])
def test_variables_that_kubernetes_makes_for_services_are_left_alone(service: str) -> None:
    url, port = "tcp://10.0.0.7:80", {"ADDR": "10.0.0.7", "PORT": "80", "PROTO": "tcp"}
    host = {"SERVICE_HOST": "10.0.0.7", "SERVICE_PORT": "80", "SERVICE_PORT_HTTP": "80"}
    links = {"PORT": url, "PORT_80_TCP": url} | {f"PORT_80_TCP_{k}": v for k, v in port.items()}
    made = {f"{service}_{name}": value for name, value in (host | links).items()}
    empty_or_foreign = {"LLUMCTL_CONTROL_PORT": "", "LLUMCTL_NONCE": "ab", "PORT": "x"}
    assert load(environ=made | empty_or_foreign) == Settings()
    mistaken = {"LLUMCTL_SERVICE_PORT": "tcp", "LLUMCTL_PORT_80_TCP": "80"}
    for variable, value in mistaken.items():
        assert refusal(environ={variable: value}).message.startswith(f"{variable}: there is no")


def test_set_over_flags_over_environment_over_file_over_defaults() -> None:
    text = """
migration.max_moves = 1
holding.making_room = true
endpoint.port = 1001
cluster = {instances = 2, frontends = 1}
priority = [{name = "normal", rank = 0}, {name = "batch", rank = -1}]
engine = {max-model-len = 64, block_size = 16, seed = 1}
"""
    environ = {"MIGRATION_MAX_MOVES": "2", "ENDPOINT_PORT": "1002", "CLUSTER_FRONTENDS": "3"}
    found = load(
        text,
        {f"LLUMCTL_{key}": value for key, value in (environ | {"ENGINE_SEED": "2"}).items()},
        {("cluster", "frontends"): ("--frontends", 4), ("endpoint", "port"): ("--port", None)},
        engine_args=("max-model-len=4096", '--hf-overrides={"a": [1]}', "x=", "y=NaN", "z=a=b"),
        assigned=(
            "migration.max_moves=3",
            "holding.making_room=off",
            "endpoint.request_timeout_s = 60",
            "endpoint.served_model_name=a,b",
            "cluster.instances=none",
            "priority.batch.target_load_tokens=800",
            "engine.seed=7",
        ),
    )
    assert (found.cluster.frontends, found.endpoint.port, found.control.port) == (4, 1002, 8700)
    assert (found.migration.max_moves, found.holding.making_room) == (3, False)
    assert found.endpoint.request_timeout_s == 60.0
    assert found.endpoint.served_model_name == ("a", "b")
    assert found.cluster.instances is None
    assert [each.target_load_tokens for each in found.priority] == [None, 800]
    engine = {"max_model_len": 4096, "block_size": 16, "seed": 7}
    assert found.engine == engine | {"hf_overrides": {"a": [1]}, "x": "", "y": "NaN", "z": "a=b"}
    found = load(assigned=("priority.high.target_load_tokens=none",))
    assert [each.name for each in found.priority] == ["normal", "high"], "the default levels"
    for argument in ("x", "--=1"):
        assert refusal(engine_args=(argument,)).message.startswith("--engine-arg: ")


def test_set_takes_what_llumctl_set_takes() -> None:
    known = live_settings(Settings()).items()
    assert (
        load(assigned=tuple(f"{key}={setting_value(each.value)}" for key, each in known)) == load()
    )


BAD_ASSIGNMENTS = [
    # what is assigned, what the message must contain, how the next command begins
    (("migration.max_moves",), "--set: 'migration.max_moves' is not of the form KEY=VALUE", ""),
    (("migration.max_moves=few",), "--set: migration.max_moves must be an integer, not 'few'", ""),
    (("migration.max_move=2",), "unknown key migration.max_move; did you mean ", "the keys of [m"),
    (("max_moves=2",), "unknown table max_moves; did you mean migration.max_moves?", "the tables"),
    (("migration=2",), "--set: migration is a table: name a key of it", ""),
    (
        ("priority.hihg.rank=2",),
        "'hihg' is not a priority level (normal, high); did you mean high?",
        None,
    ),
    (("priority.high.rnak=2",), "unknown key priority.rnak; did you mean priority.ran", "the keys"),
    (
        ("console.readonly=true",),
        "console.readonly is set in the config file only: top, status and simulate read it there,"
        " the controller as it was at up",
        "llumctl config path",
    ),
    (("keys.quit=x",), "keys.quit is set in the config file only: top r", "llumctl config path"),
    (("endpoint.port=9000",), "--set: endpoint.port is also set by --port", "llumctl up --help"),
    (("engine.max-model-len=1",), "--set: engine.max-model-len is also set by --engine-arg", ""),
    (("endpoint.tool_parser_plugin=x.py",), "names code to run: only your ", "llumctl config path"),
]


@pytest.mark.parametrize(("assigned", "part", "hint"), BAD_ASSIGNMENTS)
def test_bad_assignments_are_named(assigned: tuple[str, ...], part: str, hint: str | None) -> None:
    flags: settings.Flags = {("endpoint", "port"): ("--port", 9001)}
    error = refusal(flags=flags, engine_args=("max_model_len=64",), assigned=assigned)
    assert error.message.startswith("--set: ")
    assert part in error.message
    assert error.hint.startswith("" if hint is None else hint or "llumctl up")


def test_secrets_file_must_be_private_and_comes_out_absolute(tmp_path: Path) -> None:
    keys = tmp_path / "sub" / "keys"
    keys.parent.mkdir()
    keys.write_text("s3cret\n")
    config = tmp_path / "sub" / "c.toml"
    config.write_text("[endpoint]\nhost = '0.0.0.0'\napi_key_file = 'keys'\n")
    told = r"open to other users \(mode {:04o}\)"
    for mode in (0o640, 0o604, 0o602):
        keys.chmod(mode)
        with pytest.raises(LlumctlError, match=rf"c\.toml:3: .*{told.format(mode)}") as error:
            settings.load(config=config, environ={})
        assert error.value.hint == f"chmod 600 {keys}"
        assert "s3cret" not in error.value.message
        variable = {"LLUMCTL_ENDPOINT_API_KEY_FILE": str(keys)}
        assert refusal(environ=variable).message.startswith("LLUMCTL_ENDPOINT_API_KEY_FILE: endp")
    keys.chmod(0o600)
    assert settings.load(config=config, environ={}).endpoint.api_key_file == str(keys)


def test_a_key_file_that_is_wrong_is_named_and_not_repeated(tmp_path: Path) -> None:
    for text, says in (
        ("s3cret-1\ns3cret-2 requests=4\n", "line 2: what follows the key is no list of priority"),
        ("s3cret-1 live_requests=-1\n", "line 1: what follows the key is no list of priority"),
    ):
        keys = tmp_path / "keys"
        keys.write_text(text)
        keys.chmod(0o600)
        message = refusal("[endpoint]\napi_key_file = 'keys'\n").message
        assert message.startswith(f"c.toml:2: endpoint.api_key_file: {keys}")
        assert says in message
        assert "s3cret" not in message


def test_model_folder_becomes_absolute(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    for model, found in (("./m", str(tmp_path / "m")), ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B")):
        assert load(flags={("cluster", "model"): ("MODEL", model)}).cluster.model == found


@pytest.mark.parametrize("host", ["127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_keys(host: str) -> None:
    assert load(flags={("endpoint", "host"): ("--host", host)}).endpoint.host == host


def test_cluster_name_from_flag_environment_file() -> None:
    Path("c.toml").write_text("[cluster]\nname = 'f'\nfrontends = -1\n")
    environ = {"LLUMCTL_CONFIG": "c.toml"}
    assert config_file.cluster_name(None, {"XDG_CONFIG_HOME": str(Path.cwd())}) == "default"
    assert config_file.cluster_name(None, environ) == "f"
    environ["LLUMCTL_CLUSTER_NAME"] = "e"
    assert config_file.cluster_name(None, environ) == "e"
    assert config_file.cluster_name("g", environ) == "g"
    with pytest.raises(LlumctlError, match=r"--cluster: '\.\./x' is not a cluster name"):
        config_file.cluster_name("../x", environ)
    Path("c.toml").write_text("[cluster]\n\nname = 3\n")
    with pytest.raises(LlumctlError, match=r"^c\.toml:3: '3' is not"):
        config_file.cluster_name(None, {"LLUMCTL_CONFIG": "c.toml"})


def test_a_dotted_key_of_too_many_parts() -> None:
    for text, line in (
        (".".join("a" * 32) + " = 1", None),
        ("x = 1\n\n" + " . ".join("a" * 33) + " = 1", 3),
        ("[[" + ".".join(['"a.b"'] * 33) + "]]", 1),
        ("x = {" + ".".join(["'a'"] * 33) + " = 1}", 1),
        ('x = "' + ".".join("a" * 50) + '"', None),
        ('x = {a = """\nit\'s \\"""", ' + ".".join("a" * 33) + " = 1}", 2),
    ):
        assert toml_text.too_deep(text) == line


@pytest.mark.timeout(20)
@pytest.mark.parametrize("piece", ['\\"', "a."])
def test_any_text_is_looked_at_in_time_that_grows_as_it_does(piece: str) -> None:
    """With many escaped quotes 100 kB took half a minute, and a file may be ten times as large."""
    text = 'x = "' + piece * (config_file.MAX_BYTES // len(piece)) + "." * 40
    assert toml_text.too_deep(text) in (None, 1)


TRICKY = '''
a = """
[not.a.table]
x = 1
"""   # line 2
"quo ted".'lit#eral' = 'it = [1'
c = [  # comment = 1
  {d = 1},
  {d = "}", e = 2}, ]
[ t . u ]
v = 1979-05-27 07:32:00
[[p]]
q = 1
[p.sub]
r = 1
[[p]]
q = \'\'\'
z = 1\'\'\'
s = -1.5e3
'''


LINES: dict[toml_text.KeyPath, int | None] = {
    ("a",): 2,
    ("x",): None,
    ("quo ted", "lit#eral"): 6,
    ("c", 1, "e"): 9,
    ("t", "u", "v"): 11,
    ("p", 0, "sub", "r"): 15,
    ("p", 1, "s"): 19,
    ("p", 1, "absent"): 16,
}


def test_lines_of_tricky_toml() -> None:
    lines = toml_text.scan(TRICKY)
    assert lines.duplicate is None
    assert {key: lines.find(key) for key in LINES} == LINES


# -- values set in a text -----------------------------------------------------------------


EXAMPLE = Path(__file__).parents[2] / "examples" / "llumctl.toml"

TEXT = """\
# Ours.
[cluster]   # what runs
name = "a"

[migration]
  max_moves = 2   # fewer
  victim = 'LCR'

# Of the end.
"""


def changed_lines(before: str, after: str) -> list[str]:
    found = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in found if line.startswith(("-", "+"))]


FEWER = "  max_moves = 2   # fewer"


def test_one_value() -> None:
    for key, value, lines in (
        ("migration.max_moves", 12, [f"- {FEWER}", "+   max_moves = 12   # fewer"]),
        ("migration.victim", 'a"b', ["-   victim = 'LCR'", '+   victim = "a\\"b"']),
        ("migration.max_moves", None, [f"- {FEWER}", "+   # max_moves = 2   # fewer"]),
        ("migration.max_bytes_per_s", None, []),
        ("cluster.instances", 3, ["+ instances = 3"]),
        ("scheduler.grace_s", 2.5, ["+ ", "+ [scheduler]", "+ grace_s = 2.5"]),
    ):
        table, name = key.split(".")
        after = set_value(TEXT, (table,), name, value)
        assert changed_lines(TEXT, after) == lines
        assert tomllib.loads(after).get(table, {}).get(name) == value


def test_where_it_stands() -> None:
    for text, after in (
        ("", "[migration]\nmax_moves = 1\n"),
        ("[migration]", "[migration]\nmax_moves = 1\n"),
        ("# only words", "# only words\n\n[migration]\nmax_moves = 1\n"),
        ("[migration]\n[engine]\na = 1", "[migration]\nmax_moves = 1\n[engine]\na = 1"),
        ("migration.max_moves = 9", "migration.max_moves = 1"),
        (
            "migration.guard = true\n[keys]",
            "migration.guard = true\nmigration.max_moves = 1\n[keys]",
        ),
        ("migration = { max_moves = 9, a = true }", "migration = { max_moves = 1, a = true }"),
        ("[migration]\r\nguard = true\r\n", "[migration]\r\nguard = true\r\nmax_moves = 1\r\n"),
        (
            "[migration]\nvictim = '''\nmax_moves = 9'''\n",
            "[migration]\nvictim = '''\nmax_moves = 9'''\nmax_moves = 1\n",
        ),
    ):
        assert set_value(text, ("migration",), "max_moves", 1) == after


def test_what_is_left_to_hands() -> None:
    for text, value, line in (
        ("\nmigration = { guard = true }", 1, 2),
        ("migration = { max_moves = 9 }", None, 1),
        ("\n[migration]\nmax_moves = '''\n9'''", None, 3),
    ):
        with pytest.raises(CannotEditError) as caught:
            set_value(text, ("migration",), "max_moves", value)
        assert caught.value.line == line


def test_every_setting_in_the_example() -> None:
    """One line of it changes, or comes where there was only a comment."""
    text = EXAMPLE.read_text()
    settings = live_settings(Settings())
    for key in [key for key in settings if key.count(".") == 1]:
        table, name = key.split(".")
        old = settings[key].value
        new: Value = not old if isinstance(old, bool) else "x" if isinstance(old, str) else 7
        after = set_value(text, (table,), name, new)
        assert tomllib.loads(after)[table][name] == new
        assert len(changed_lines(text, after)) == (1 if old is None else 2), key
        assert set_value(after, (table,), name, new) == after
