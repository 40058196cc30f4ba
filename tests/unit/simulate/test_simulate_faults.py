"""Faults as people write them, and what is told of wrong ones."""

from pathlib import Path

import pytest

from controller.api.errors import UsageError
from controller.sim.setup import Fault
from llumctl.lab.simulation_plan import parse_faults


def test_a_list_or_a_file_with_comments(tmp_path: Path) -> None:
    found = (Fault(60.0, "drain", "i-3"), Fault(61.5, "slow-links", "i-1", 8.0))
    assert parse_faults("60:drain:i-3, 61.5:slow-links:i-1:8", 4) == found
    file = tmp_path / "faults"
    file.write_text("# one of four\n\n60:drain:i-3  # for good\n61.5:slow-links:i-1:8\n")
    assert parse_faults(str(file), 4) == found
    assert parse_faults("1:kill:i-99", None) == (Fault(1.0, "kill", "i-99"),)
    for text, told in (
        (b"1:kill:i-0\n\n2:drain:i-9\n", f"{file}:3: '2:drain:i-9'"),
        (b"# nothing yet\n", "holds no fault"),
        (b"\xff\xfe", "not UTF-8"),
    ):
        file.write_bytes(text)
        with pytest.raises(UsageError, match=told):
            parse_faults(str(file), 4)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("60:kill:i-3,70:kil:i-1", "number 2: '70:kil:i-1': .*did you mean kill"),
        ("60:kill", "SECONDS:KIND:INSTANCE"),
        ("inf:kill:i-0", "'inf' is not a time"),
        ("1:kill:i-4", "the instances are i-0 to i-3"),
        ("1:kill:i-0:2", "kill takes no factor"),
        ("1:slow-steps:i-0", "takes a factor"),
        ("1:slow-steps:i-0:0", "not a positive factor"),
        ("nowhere", "cannot read nowhere: No such file"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parse_faults(text, 4)
