"""The spec on disk: private, written whole or not at all, and of one run of the cluster."""

import json
import os
import stat
from pathlib import Path

import pytest

from controller.adapters.files.state_files import SPEC_FILE, SpecFile
from controller.api.errors import LlumctlError
from controller.core.emptying.claims import Drain, Evacuate, Remove, Restart, SlowDrain
from controller.core.fleet.cluster_spec import (
    ClusterSpec,
    EngineChange,
    RollingOrder,
    ScaleHold,
)

NEW = EngineChange(2, {"max_num_seqs": 64, "compilation_config": {"level": 0}, "speed": 2.5})
SPEC = (
    ClusterSpec.first(2)
    .with_instances_added(1)
    .with_settings(
        {
            "migration.enabled": False,
            "migration.max_moves": 4,
            "migration.max_bytes_per_s": 30.0,
            "scheduler.policy": "infaas++",
            "endpoint.request_timeout_s": None,
        }
    )
    .with_claims({"i-2": Drain("d-1", 7.5, reason="a fan"), "i-0": SlowDrain("d-3", 7.0)})
    .with_claims({"i-2": Remove("d-2", 8.5, 9.5, "abort"), "i-0": Restart("d-4", 8.0, nonce="n")})
    .with_claims({"i-0": Evacuate("d-5", 9.0, 39.0, actor="ana", reason="a new disk, größer")})
    .held_by(ScaleHold("ana", 3, 12.5))
    .with_rolling(
        RollingOrder("op-1", 1.0, (), (), {"i-0": 2.5}, engine=NEW, state="done", ended_s=9.0),
        engines={"i-1": EngineChange(1, {"enforce_eager": True})},
    )
)


@pytest.fixture
def file(tmp_path: Path) -> SpecFile:
    return SpecFile(tmp_path, "n0nce")


def test_it_comes_back_as_it_was(file: SpecFile) -> None:
    assert file.load() is None
    old = os.umask(0)
    try:
        file.save(SPEC)
    finally:
        os.umask(old)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    found = file.load()
    assert found == SPEC
    assert [(k, type(v)) for k, v in found.settings.items()] == [
        (k, type(v)) for k, v in SPEC.settings.items()
    ]
    file.save(ClusterSpec.first(1))
    assert file.load() == ClusterSpec.first(1)


def test_another_run_of_the_cluster_begins_anew(file: SpecFile, tmp_path: Path) -> None:
    file.save(SPEC)
    assert SpecFile(tmp_path, "another").load() is None
    assert file.load() == SPEC


def test_a_full_disk_leaves_what_was(file: SpecFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.save(SPEC)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(LlumctlError, match=r"spec\.json: No space left"):
        file.save(ClusterSpec.first(1))
    assert file.load() == SPEC
    assert os.listdir(file.path.parent) == [SPEC_FILE]  # noqa: PTH208 - nothing temporary stays


def changed(**changes: object) -> dict[str, object]:
    kept = {"schema_version": 3, "nonce": "n0nce", "spec": {"revision": 1}}
    return {**kept, **changes}


UNCLAIMED = {
    "instance_ids": ["i-0"],
    "next_instance": 1,
    "drains": {"i-0": {"drain_id": "d", "began_s": 1.0}},
}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Invalid JSON"),
        ('{"schema_version": 1, "nonce": "n0nce", "spec"', "Invalid JSON"),
        ("[]", "should be an object"),
        ("{}", "schema_version: Field required"),
        (json.dumps(changed(schema_version=4)), "written by a newer llumctl"),
        (json.dumps(changed(schema_version=1)), "written by an older llumctl (schema 1, this"),
        (json.dumps(changed(nonce="")), "nonce: "),
        (json.dumps(changed(spec={"revision": "1"})), "spec.revision: "),
        (json.dumps(changed(spec={"settings": {"a": [1]}})), "spec.settings.a"),
        (json.dumps(changed(spec={"instance_ids": ["i-0", "i-0"]})), "named twice"),
        (json.dumps(changed(spec={"drains": {"i-0": {"drain_id": "d"}}})), "spec.drains.i-0"),
        (json.dumps(changed(spec=UNCLAIMED)), "a drain that nobody claims"),
    ],
)
def test_what_is_broken_is_no_spec_and_no_half_of_one(file: SpecFile, text: str, why: str) -> None:
    file.path.write_text(text)
    with pytest.raises(LlumctlError, match="is broken") as raised:
        file.load()
    assert why in raised.value.message
    assert str(file.path) in raised.value.message
    assert str(file.path) in raised.value.hint


def test_fields_of_a_newer_version_are_skipped(file: SpecFile) -> None:
    file.path.write_text(json.dumps(changed(later=1, spec={"revision": 3, "later": {}})))
    assert file.load() == ClusterSpec(3)


def test_a_folder_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / SPEC_FILE).mkdir()
    with pytest.raises(LlumctlError, match=r"cannot read .*spec\.json"):
        SpecFile(tmp_path, "n").load()
