"""The security baseline, one test per promise that needs no cluster.

Some read the source: a promise like "no pickle anywhere" is about code that is not there. Each
such reader is itself tried on code that breaks the promise.
"""

import ast
import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import typer.main
from pydantic import ValidationError

from controller.adapters.vllm import process_setup
from controller.api.errors import UsageError
from controller.api.hosts import is_loopback
from controller.api.settings.settings import Settings
from controller.api.settings.vllm_options import REFUSED, EndpointOptions
from controller.api.state import run_state
from controller.main import down, up
from controller.main.checks.engine_args import check_engine_args
from controller.main.checks.vllm_arguments import ARGUMENTS
from controller.main.machine.ray_environment import make_token, ray_authentication
from controller.main.plan import ClusterPlan, state_of
from llumctl.app import app

ROOT = Path(__file__).parents[2]
SECRETS = {
    "members_key": "members-42",
    "control_token": "control-42",
    "view_token": "view-42",
    "api_keys": ("user-42", "user-43"),
    "telemetry": {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=vendor-42"},
}
Reader = Callable[[str], Iterator[str]]


def plan(tmp_path: Path) -> ClusterPlan:
    return ClusterPlan(
        settings=Settings(),
        engine_args={"model": "m"},
        num_instances=1,
        num_frontends=1,
        num_gpus_per_instance=0,
        num_threads_per_instance=1,
        members_port=1,
        namespace="n",
        nonce="0a",
        state_dir=str(tmp_path),
        log_dir=str(tmp_path),
        temp_dir=str(tmp_path),
        **SECRETS,
    )


def secret_words(text: str) -> list[str]:
    return re.findall(r"(?:members|control|view|user|vendor)-4[23]", text)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- addresses ----------------------------------------------------------------------------


def test_everything_listens_on_loopback_by_default() -> None:
    settings = Settings()
    for table in (settings.cluster, settings.endpoint, settings.control):
        assert is_loopback(table.host), table
    assert settings.control.port != settings.endpoint.port


# -- secrets: from files or the environment, never in argv, logs, reprs --------------------


def commands(group: click.Command, path: str = "llumctl") -> Iterator[tuple[str, click.Command]]:
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, f"{path} {name}")


def test_no_command_takes_a_secret() -> None:
    found = [
        (path, parameter.name)
        for path, command in commands(typer.main.get_command(app))
        for parameter in command.params
        if is_secret(str(parameter.name)) or is_secret("_".join(parameter.opts).strip("-"))
    ]
    assert found == []
    assert is_secret("api_key")
    assert not is_secret("api_key_file")
    assert not is_secret("max_tokens_cap")


def test_no_engine_argument_takes_a_secret() -> None:
    for name in ("api_key", "hf_token"):
        with pytest.raises(UsageError, match=f"{name} is refused"):
            check_engine_args({name: "x"})
    assert {name for name in ARGUMENTS if is_secret(name)} <= set(REFUSED)
    assert not any(map(is_secret, EndpointOptions.model_fields))


def test_the_head_gets_its_secrets_through_a_private_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[Any, Any]] = []

    def popen(arguments: list[str], **options: Any) -> SimpleNamespace:
        started.append((arguments, options["env"]))
        return SimpleNamespace(pid=os.getpid())

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(subprocess, "Popen", popen)
    made = plan(tmp_path)
    old = os.umask(0)
    try:
        _, state = up.start_head(made, state_of(made, ray_authentication(str(tmp_path), "")), 600.0)
    finally:
        os.umask(old)
    assert len(started) == 1
    assert secret_words(str(started)) == []
    assert secret_words(repr(state)) == []
    file = tmp_path / up.PLAN_FILE
    assert started[0][0][-1] == str(file)
    assert ClusterPlan.model_validate_json(file.read_bytes()) == made
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) >= 4, "plan, token of Ray, run state, log of the head"
    assert {path.name: mode(path) for path in written} == {path.name: 0o600 for path in written}


def test_the_plan_does_not_show_its_secrets(tmp_path: Path) -> None:
    good = plan(tmp_path)
    assert secret_words(f"{good} {good!r}") == []
    assert secret_words(good.model_dump_json()) == [
        *("members-42", "control-42", "view-42"),
        *SECRETS["api_keys"],
        "vendor-42",
    ]
    with pytest.raises(ValidationError) as refused:
        ClusterPlan.model_validate(good.model_dump() | {"api_keys": "user-42", "nonce": None})
    assert secret_words(str(refused.value)) == []


def test_a_member_gets_no_more_secrets_than_it_needs(tmp_path: Path) -> None:
    whole = plan(tmp_path)
    control = {whole.control_token, whole.view_token}
    for_instances = whole.for_instances().model_dump_json()
    for_frontends = whole.for_frontends().model_dump_json()
    assert all(secret not in for_instances for secret in {*control, *whole.api_keys})
    assert all(secret not in for_frontends for secret in control)
    assert all(key in for_frontends for key in whole.api_keys)
    assert "vendor-42" not in for_instances
    assert "vendor-42" in for_frontends
    for sent in (for_instances, for_frontends):
        assert whole.members_key in sent
        assert ClusterPlan.model_validate_json(sent).settings == whole.settings


def test_a_cluster_is_stopped_though_the_audit_log_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (run_state.state_dir("c1") / "audit.log").mkdir()
    told: list[str] = []
    state = SimpleNamespace(cluster="c1", nonce="n")
    down.note(state, "down: now", "begun", told.append)
    assert "cannot write the audit log" in told[0]
    assert told[0].endswith("going on")


def test_own_ray_wants_a_token_and_serves_no_dashboard(tmp_path: Path) -> None:
    found = ray_authentication(str(tmp_path), "")
    make_token(found)
    assert found["RAY_AUTH_MODE"] == "token"
    token = Path(found["RAY_AUTH_TOKEN_PATH"])
    assert mode(token) == 0o600
    assert len(token.read_text()) == 32
    assert token.read_text() not in str(found)
    calls = [
        node
        for node in ast.walk(ast.parse((ROOT / "controller/main/roles.py").read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ray.init"
    ]
    options = [{word.arg: ast.unparse(word.value) for word in call.keywords} for call in calls]
    own = [words for words in options if "address" not in words]
    assert [words["include_dashboard"] for words in own] == ["False"]


# -- reading the source -------------------------------------------------------------------

SECRET = re.compile(
    r"(^|_)(secret|password|passwd|passphrase|bearer|authorization)(_|$)|^_?credentials?$"
    r"|(^|_)(api|members|private|secret)_keys?$"
    r"|(^|_)(control|view|auth|access|bearer|hf)_tokens?$"
    r"|^_?token$"
)
# Where a token is a piece of text.
OF_A_MODEL = (
    "controller/adapters/embedded_model/",
    "controller/adapters/emulated/",
    "controller/api/token_sequence.py",
    "controller/core/",
    "controller/model/",
)


def is_secret(name: str) -> bool:
    return bool(SECRET.search(name.replace("-", "_").lower()))


def names_in(node: ast.AST) -> Iterator[str]:
    """Identifiers, and strings that something is looked up by."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.Call | ast.Subscript):
            keys = part.args if isinstance(part, ast.Call) else [part.slice]
            for key in keys:
                if isinstance(key, ast.Constant) and isinstance(key.value, str | bytes):
                    yield key.value if isinstance(key.value, str) else key.value.decode("latin-1")


def plain_comparisons(source: str) -> Iterator[str]:
    """Secrets compared in a time that tells how much of them is right."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            plain = any(isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in node.ops)
            if plain and any(is_secret(name) for name in names_in(node)):
                yield ast.unparse(node)


CONTENT = re.compile(
    r"(^|_)(prompts?|token_ids|messages?|contents?|text|body|payload|frames?|head|buffer|headers"
    r"|requests?|outputs?|completions?|engine_args|environ)$"
)
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def content_in_logs(source: str) -> Iterator[str]:
    """Log calls that are given what users or processes wrote, or a secret. How many, how long
    and of what type it is may be told."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = ast.unparse(node.func.value).split(".")[-1].lstrip("_")
        if owner not in ("log", "logger", "logging") or node.func.attr not in LEVELS:
            continue
        for argument in (*node.args, *(word.value for word in node.keywords)):
            told = ast.unparse(argument)
            if not re.match(r"(len|type)\(", told) and any(
                CONTENT.search(name) or is_secret(name) for name in names_in(argument)
            ):
                yield told


def matches(pattern: str) -> Reader:
    return lambda source: (found[0] for found in re.finditer(pattern, source, re.MULTILINE))


code_from_bytes = matches(
    r"^\s*(import|from)\s+(pickle|cPickle|cloudpickle|dill|marshal|shelve|joblib)\b"
    r"|(?<![\w.])(eval|exec|__import__)\(|\.(recv|send)_(pyobj|serialized)\b"
    r"|\b(torch\.load|yaml\.(unsafe_|full_)?load(_all)?)\(|\ballow_pickle="
)
"""Ways to read data that can make a reader run the writer's code."""
access_log = matches(r"(?<!\w)Config\(((?!access_log=False|^ *\)$)[\s\S])*^ *\)$")
"""A server that would log a line per request, with its query."""
open_mailbox = matches(r"(?<!class )\bZmqMailbox\((?!.*ClusterKey\()")
"""A mailbox to which anybody may write."""
SECRET_MENTIONED = r"secret|passw|passphrase|bearer|authorization|credential|_keys?\b|token\b"
# A replay's shelf is no socket: a file without a name, of which only the process that wrote it has
# a descriptor. And Ray itself sends actors so, over its own sockets: `doctor` says of one module
# that it goes along, as nodes may not have it.
NO_SOCKETS = ("tui/replay.py", "controller/main/doctor/gather.py")


"""Ways to read data that can make a reader run the writer's code."""
"""A server that would log a line per request, with its query."""
"""A mailbox to which anybody may write."""


def our_source() -> Iterator[tuple[str, str]]:
    for top in ("controller", "llumctl", "tui"):
        for file in sorted((ROOT / top).rglob("*.py")):
            yield str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")


COMPARED, LOGGED = "given != f'Bearer {self._token}'", "log.warning(f'{item.prompt_token_ids}')"


@pytest.mark.long
@pytest.mark.parametrize(
    ("reader", "mention", "but_not_in", "bad"),
    [
        (plain_comparisons, SECRET_MENTIONED, OF_A_MODEL, COMPARED),
        (content_in_logs, r"\blog(ger|ging)?\.", (), LOGGED),
        (code_from_bytes, "", NO_SOCKETS, "    from cloudpickle import loads"),
        (access_log, "", (), "uvicorn.Config(\n    app,\n)"),
        (open_mailbox, "", (), "zmq.ZmqMailbox(host, 1, None)"),
    ],
    ids=["secrets", "contents of logs", "code from bytes", "access logs", "open mailboxes"],
)
def test_our_source_keeps_the_promise(
    reader: Reader, mention: str, but_not_in: tuple[str, ...], bad: str
) -> None:
    """Only files that mention what the promise is about are parsed, which takes long."""
    assert list(reader(bad)) != []
    assert [
        f"{name}: {what}"
        for name, text in our_source()
        if re.search(mention, text) and not name.startswith(but_not_in)
        for what in reader(text)
    ] == []


def test_variables_that_would_make_frontends_differ_or_leak_do_not_reach_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given = {
        "VLLM_ENABLE_RESPONSES_API_STORE": "1",
        "SAGEMAKER_ENABLE_STATEFUL_SESSIONS": "true",
        "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1",
        "VLLM_ENABLE_COHERE_API": "1",
        "VLLM_API_KEY": "sk-secret",
        "VLLM_DP_SIZE": "4",
        "VLLM_PORT": "tcp://10.0.0.1:8000",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    }
    environ = given | {"VLLM_IMAGE_FETCH_TIMEOUT": "9"}
    monkeypatch.setattr(os, "environ", environ)
    process_setup.prepare()
    assert not given.keys() & environ.keys()
    assert environ["VLLM_IMAGE_FETCH_TIMEOUT"] == "9"
    assert environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert all(name in caplog.text for name in given), "the log says what does not count"
    assert "sk-secret" not in caplog.text
