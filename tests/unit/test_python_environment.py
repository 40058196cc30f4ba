"""Which Python environments may run instances. The interpreters are shell scripts that say about
their environment what the test wants."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.api.errors import UsageError, WrongSettingError
from controller.api.settings.settings import Settings
from controller.main.checks import environment
from controller.main.checks.environment import check_python, checked_path, describe
from controller.main.doctor import doctor
from controller.main.plan import refuse_other_version
from llumctl.config import settings as settings_module
from tests.unit.test_security import plan

SETTINGS = Settings()
Make = Callable[..., str]


@pytest.fixture
def interpreter(tmp_path: Path) -> Make:
    def make(output: str | None = None, **says: Any) -> str:
        """Says what this environment would say, but for `says`."""
        told = describe(SETTINGS.model_dump_json()).model_dump(mode="json") | says
        path = tmp_path / "bin" / "python"
        path.parent.mkdir(exist_ok=True)
        said = tmp_path / "said.json"
        said.write_text(json.dumps(told) if output is None else output)
        path.write_text(f"#!/bin/sh\ncat > /dev/null\ncat {said}\necho 'it is broken' >&2\n")
        path.chmod(0o755)
        return str(path)

    return make


def test_an_interpreter_that_others_can_replace_is_refused(interpreter: Make) -> None:
    path = Path(interpreter())
    assert checked_path(str(path)) == path
    for wrong, words in (
        (7, "must be the absolute path of a Python interpreter, not 7"),
        ("env/bin/python", "must be the absolute path"),
        (str(path.parent), "is the folder"),
        (f"{path}9", "does not exist"),
        ("/sbin/shutdown", "is no Python interpreter by its name"),
    ):
        with pytest.raises(WrongSettingError, match=words) as caught:
            checked_path(wrong)
        assert caught.value.key == ("engine", "python")
    path.parent.chmod(0o777)
    with pytest.raises(WrongSettingError, match=f"other users can change {path.parent}"):
        checked_path(str(path))
    path.parent.chmod(0o755)
    path.chmod(0o644)
    if os.geteuid():
        with pytest.raises(WrongSettingError, match="cannot be run"):
            checked_path(str(path))


@pytest.mark.process
def test_what_differs_is_named_with_the_next_command(interpreter: Make) -> None:
    structs = describe(SETTINGS.model_dump_json()).structs
    swapped = {name: [*reversed(fields)] for name, fields in structs.items()}
    for says, words, hint in (
        ({"python": "3.99"}, "has Python 3.99, and the cluster runs on Python 3", "-m venv"),
        ({"ray": "1.0"}, "has Ray 1.0, and the cluster runs on Ray", "pip install ray=="),
        ({"wire": "x"}, "do not understand each other's messages", "pip install llumctl=="),
        ({"no_settings": "a: b"}, "does not take the cluster's settings: a: b", "llumctl=="),
        ({"no_vllm": "vLLM is not installed"}, "vLLM is not installed", "install vllm=="),
        ({"structs": swapped}, "sends EngineCoreRequest in another form", "upgrading.md"),
        ({"structs": {}}, "sends EngineCoreRequest in another form", "upgrading.md"),
        ({"output": ""}, "no llumctl that can run instances: it is broken", "llumctl=="),
    ):
        with pytest.raises(WrongSettingError, match=words) as caught:
            check_python(interpreter(**says), SETTINGS, runs_vllm=True)
        assert hint in caught.value.hint, words
    more = {name: [*fields, "new"] for name, fields in structs.items()}
    check_python(interpreter(structs=more), SETTINGS, runs_vllm=True)
    check_python(interpreter(no_vllm="no", structs={}), SETTINGS, runs_vllm=False)


@pytest.mark.process
def test_a_real_interpreter_describes_itself() -> None:
    import sys

    told = environment.described(Path(sys.executable), SETTINGS)
    assert told == describe(SETTINGS.model_dump_json())
    assert told.structs["EngineCoreRequest"][0] == "request_id"
    assert "no_such_table" in describe(json.dumps({"no_such_table": 1})).no_settings


def test_doctor_checks_the_environment_that_the_settings_name(tmp_path: Path) -> None:
    settings = Settings(engine={"python": f"{tmp_path}/python9"})
    found = doctor.options_check(settings)
    assert found.result is doctor.FAIL
    assert f"engine.python {tmp_path}/python9 does not exist" in str(found)
    assert doctor.options_check(Settings()).result is doctor.OK


def test_a_plan_of_another_version_is_refused(tmp_path: Path) -> None:
    text = plan(tmp_path).model_dump_json()
    refuse_other_version(text)
    other = json.dumps(json.loads(text) | {"wire": "x"})
    with pytest.raises(Exception, match="sends other messages than the llumctl that started"):
        refuse_other_version(other)


def test_the_setting_names_an_interpreter_or_an_environment(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    for given in (str(tmp_path / "env"), str(tmp_path / "env/bin/python")):
        found = settings_module.load(engine_args=(f"python={given}",), environ={})
        assert found.engine_python == f"{tmp_path}/env/bin/python"
        assert found.vllm_args == {}
    emulated = {("cluster", "engine"): ("--engine", "emulated")}
    found = settings_module.load(flags=emulated, engine_args=("python=/p",), environ={})
    assert found.engine_python == "/p"
    with pytest.raises(UsageError, match=r"engine\.dtype is an argument of vLLM"):
        settings_module.load(flags=emulated, engine_args=("dtype=half",), environ={})
