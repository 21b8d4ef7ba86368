from __future__ import annotations

import io

from quiver_actors.cli.progress_bar import ProgressBar, StatusLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bar_is_drawn_and_taken_away_on_a_terminal() -> None:
    stream = Terminal()
    with ProgressBar(2048, stream) as bar:
        bar.advance(1024)
        assert stream.getvalue().endswith("[###############...............] 1.00 KiB of 2.00 KiB")
    assert stream.getvalue().endswith("\r\x1b[K")


def test_bar_never_passes_its_total() -> None:
    stream = Terminal()
    with ProgressBar(1024, stream) as bar:
        bar.advance(4096)
    assert "1.00 KiB of 1.00 KiB" in stream.getvalue()


def test_nothing_is_drawn_off_a_terminal_or_without_work() -> None:
    plain = io.StringIO()
    with ProgressBar(1024, plain) as bar:
        bar.advance(512)
        bar.clear()
    terminal = Terminal()
    with ProgressBar(0, terminal) as bar:
        bar.advance(512)
    assert (plain.getvalue(), terminal.getvalue()) == ("", "")


def test_a_line_is_drawn_and_taken_away_on_a_terminal_only() -> None:
    terminal, plain = Terminal(), io.StringIO()
    for stream in (terminal, plain):
        with StatusLine(stream) as line:
            line.say("7 bundles behind")
    assert terminal.getvalue() == "\r\x1b[K7 bundles behind\r\x1b[K"
    assert plain.getvalue() == ""
