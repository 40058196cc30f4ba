"""The alert rules: written from the rows, readable for Prometheus, raised by one word."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.core.record.verdict import Word
from tools import alert_rules
from tools.alert_rules import RUNBOOKS

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (apt install prometheus)"
)
RULES = [rule for group in alert_rules.rules()["groups"] for rule in group["rules"]]


def test_the_rules_and_the_page_are_those_of_the_rows() -> None:
    assert alert_rules.RULES.read_text("utf-8") == alert_rules.rules_text(), "`make reference`"
    assert alert_rules.PAGE.read_text("utf-8") == alert_rules.page_text(), "`make reference`"


def test_each_word_has_a_runbook_and_trouble_an_alert() -> None:
    words = [each.title for each in RUNBOOKS if not each.expr]
    assert sorted(words) == sorted(Word)
    quiet = {each.title for each in RUNBOOKS if not each.severity}
    assert quiet == {Word.OK, Word.RECOVERING}
    for each in RUNBOOKS:
        assert each.means, each.title
        assert each.look, each.title
        assert each.do, each.title
        assert bool(each.severity) == bool(each.after), each.title


def test_the_file_has_what_prometheus_reads() -> None:
    """What `promtool check rules` asks for, for machines without it."""
    assert yaml.safe_load(alert_rules.RULES.read_text("utf-8")) == alert_rules.rules()
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.keys() == {
            *("alert", "expr", "for", "keep_firing_for", "labels", "annotations"),
        }
        assert re.fullmatch(r"Llumctl[A-Z]\w*", rule["alert"])
        assert re.fullmatch(r"\d+[ms]", rule["for"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        file, _, anchor = rule["annotations"]["runbook"].partition("#")
        heading = f"\n## {anchor.replace('-', ' ')}\n"
        assert heading in (alert_rules.ROOT / file).read_text("utf-8")


def promtool(*arguments: str) -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.process
def test_promtool_takes_the_rules() -> None:
    promtool("check", "rules", str(alert_rules.RULES))


@needs_promtool
@pytest.mark.process
def test_an_alert_is_raised_once_its_word_has_held_and_by_no_other(tmp_path: Path) -> None:
    """Each word holds for 20 minutes from minute 5 on, in a test of its own."""
    tests = [a_test_of(word) for word in Word] + [a_test_of(None)]
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(alert_rules.RULES)], "tests": tests}))
    promtool("test", "rules", str(file))


def a_test_of(present: Word | None) -> dict[str, Any]:
    """`present`: the word that holds; None: the controller is away."""
    series = [
        {"series": f'llumctl_verdict{{word="{word}",cluster="a"}}', "values": "0x4 1x20 0x30"}
        if word == present
        else {"series": f'llumctl_verdict{{word="{word}",cluster="a"}}', "values": "0x60"}
        for word in Word
    ]
    up = f'up{{job="{alert_rules.JOB}",cluster="a"}}'
    series.append({"series": up, "values": "1x60" if present else "1x4 0x20 1x30"})
    return {
        "interval": "1m",
        "input_series": series,
        "alert_rule_test": [
            {
                "eval_time": f"{minute}m",
                "alertname": rule["alert"],
                "exp_alerts": [raised(rule)] if rule_is_raised(rule, present, minute) else [],
            }
            for rule in RULES
            for minute in (0, 5, 24, 26, 40)
        ],
    }


def rule_is_raised(rule: dict[str, Any], present: Word | None, minute: int) -> bool:
    """At minute 24 each has held for longer than any rule asks for, at minute 26 it is kept."""
    (row,) = [each for each in RUNBOOKS if each.alert == rule["alert"]]
    asked = row.expr if present is None else row.title == present
    return bool(asked) and minute in (24, 26)


def raised(rule: dict[str, Any]) -> dict[str, Any]:
    (row,) = [each for each in RUNBOOKS if each.alert == rule["alert"]]
    about = {"job": alert_rules.JOB} if row.expr else {"word": row.title}
    annotations = rule["annotations"] | {"summary": f"llumctl cluster a: {row.title}"}
    return {
        "exp_labels": {"severity": rule["labels"]["severity"], "cluster": "a", **about},
        "exp_annotations": annotations,
    }
