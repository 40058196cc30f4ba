"""Each attack comes to an end and counts what came of it; bad outcomes are faults."""

import argparse
import json
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.unit.fuzz.faulty_endpoint import FaultyEndpoint, error
from tools.attack.__main__ import Run, Turns, _write, judge
from tools.attack.attacks import ATTACKS, Target
from tools.canary import Gap
from tools.cluster import Cluster
from tools.footprints import Footprint, ProcessKey
from tools.fuzz.watch import ClusterWatch


@pytest.mark.parametrize("name", sorted(set(ATTACKS) - {"slow_clients", "kept_connections"}))
async def test_an_attack(name: str) -> None:
    with FaultyEndpoint(lambda _: None).in_thread() as endpoint:
        port = urlsplit(endpoint.url).port
        target = Target("127.0.0.1", port, (port,), scale=0.01)
        await ATTACKS[name](target)
    assert target.outcomes
    expected = {"400", "left"} if name != "strangers" else {"sent"}
    assert set(target.outcomes) <= expected


async def test_connections_closed_without_an_answer_are_counted() -> None:
    for planted, expected in ((b"HTTP", "closed without an answer"), (error(500), "500")):
        with FaultyEndpoint(lambda _, planted=planted: planted).in_thread() as endpoint:
            target = Target("127.0.0.1", urlsplit(endpoint.url).port, scale=0.005)
            await ATTACKS["kept_connections"](target)
        assert target.outcomes[expected] >= 2


def test_faults_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster({"XDG_STATE_HOME": "/nowhere"})
    good = Turns(1, Counter({"200": 5, "400": 2, "left": 1}), Gap(0.0, 0.5))
    run = Run(cluster, ClusterWatch(cluster), {"overload": good})
    assert judge(run, 1.0) == []
    assert len(judge(run, 0.3)) == 1
    bad = Turns(1, Counter({"500": 1, "closed without an answer": 2, "200, cut": 1}))
    key, small = ProcessKey("f-0", 7), Footprint(100 << 20, 0, 30, 10, 0.0)
    grown = Run(
        cluster,
        ClusterWatch(cluster),
        {"overload": bad},
        before={key: small},
        after={key: Footprint(900 << 20, 0, 30, 10, 0.0)},
    )
    assert len(judge(grown, 1.0)) == 4
    monkeypatch.setattr("tools.attack.__main__.RESULTS", tmp_path / "results")
    options = argparse.Namespace(seconds=1.0, out=None)
    content = json.loads(_write(grown, options).read_text())
    assert content["attacks"]["overload"]["outcomes"]["500"] == 1
    assert content["after"]["f-0 (7)"]["rss_bytes"] == 900 << 20
    assert len(content["faults"]) == len(grown.faults)
