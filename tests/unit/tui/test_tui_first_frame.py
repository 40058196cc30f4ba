"""What is on the terminal while the dashboard is imported."""

import io

import pytest

from tui.startup import first_frame

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


def test_it_names_the_cluster_and_stays_for_the_dashboard() -> None:
    stream = io.StringIO()
    with first_frame(stream, "prod-a\x1b[2J", rule="-"):
        assert " prod-a[2J" in stream.getvalue()
    assert stream.getvalue().startswith(ENTER)
    assert "- Instances -" in stream.getvalue()
    assert LEAVE not in stream.getvalue()


def test_an_error_is_told_on_the_screen_from_before() -> None:
    stream = io.StringIO()
    with pytest.raises(KeyboardInterrupt), first_frame(stream, "prod-a", rule="-"):
        raise KeyboardInterrupt
    assert stream.getvalue().endswith(LEAVE)


def test_a_signal_right_behind_the_first_byte_gives_the_screen_back() -> None:
    class Signalled(io.StringIO):
        """Python's handler of a signal runs between any two lines."""

        def flush(self) -> None:
            if LEAVE not in self.getvalue():
                raise SystemExit(143)

    stream = Signalled()
    with pytest.raises(SystemExit), first_frame(stream, "prod-a", rule="-"):
        pass
    assert stream.getvalue().endswith(LEAVE)
