"""Tables on terminals and in pipes; sizes and times in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.output import (
    format_duration,
    format_minute,
    format_size,
    line_ranges,
    on_one_line,
    plain_console,
    print_table,
)

ROOT = Path(__file__).resolve().parents[2]
ADAPTER = f"support@{'3f' * 32}"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 KB"), (2_500_000, "2.5 MB"), (5e15, "5000.0 TB")],
)
def test_sizes(count: float, text: str) -> None:
    assert format_size(count) == text


@pytest.mark.parametrize(
    ("width", "is_table", "shown"),
    [(200, True, ADAPTER), (80, True, f"support@{'3f' * 6}…"), (20, False, ADAPTER), (None, False, ADAPTER)],
)
def test_ids_of_adapters_are_short_where_a_terminal_is_narrow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int | None, is_table: bool, shown: str
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "0" if width is None else "1")
    monkeypatch.setenv("COLUMNS", str(width or 80))
    print_table(("receipt", "adapter"), [("receipt-01", ADAPTER)])
    output = capsys.readouterr().out
    assert ("│" in output, shown in output) == (is_table, True)


def test_narrow_terminals_get_short_ids_and_values_wrapped_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "44")
    print_table(("id", "progress"), [("ftjob-01m8b01nabcdefghjkmn3fk2a8", "step 3/40 [red] loss 0.61 ETA 0:07")])
    output = capsys.readouterr().out
    assert "ftjob-…3fk2a8" in output and "│" in output
    assert all(word in output for word in ("3/40", "[red]", "0:07")), "markup in a value is text"
    monkeypatch.setenv("COLUMNS", "20")
    print_table(("id", "progress"), [("ftjob-01m8b01nabcdefghjkmn3fk2a8", "x")])
    assert "ftjob-01m8b01nabcdefghjkmn3fk2a8\tx" in capsys.readouterr().out


def test_narrow_terminal_leaves_spare_columns_out_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    rows = [("one", "finetune", ADAPTER, "shared"), ("two", "merge", "", "shared")]
    for width, left_out in ((120, ""), (60, ""), (50, "tenant"), (40, "kind, tenant")):
        monkeypatch.setenv("COLUMNS", str(width))
        print_table(("id", "kind", "result", "tenant"), rows, spare=("tenant", "kind"))
        printed = capsys.readouterr()
        assert printed.err == (f"left out, as the terminal is narrow: {left_out}\n" if left_out else "")
        assert f"support@{'3f' * 6}…" in printed.out or ADAPTER in printed.out, "no id is cut"
        assert max(map(len, strip_ansi(printed.out).splitlines())) <= width


def strip_ansi(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (42.9, "42 s"), (60, "1 min"), (3599, "59 min"), (7500, "2 h 05 min"), (100 * 3600, "4 d 4 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("time", "text"), [("2026-01-02T03:04:05Z", "2026-01-02 03:04"), (1767323045, "2026-01-02 03:04"), (None, "")]
)
def test_times(time: str | float | None, text: str) -> None:
    assert format_minute(time) == text


def test_runs_of_lines_are_shortened() -> None:
    assert line_ranges([1, 2, 3, 5, 8, 9]) == "1-3, 5, 8-9"


@pytest.mark.parametrize(
    ("text", "shown"), [("", ""), (" a\n\tb ", "a b"), ("a" * 9, "a" * 9), ("a" * 10, "a" * 8 + "…")]
)
def test_text_is_shown_on_one_line(text: str, shown: str) -> None:
    assert on_one_line(text, 9) == shown


def test_console_prints_markup_and_emoji_codes_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    plain_console().print("[/b] [red]a[/red] :smile: \\[x]")
    assert capsys.readouterr().out == "[/b] [red]a[/red] :smile: \\[x]\n"


@pytest.mark.parametrize("package", ["cli", "openai_migration"])
def test_every_console_is_plain(package: str) -> None:
    files = [path for path in (ROOT / package).rglob("*.py") if path != ROOT / "cli" / "output.py"]
    assert files
    assert not [str(path) for path in files if re.search(r"(?<!\w)Console\(", path.read_text())]
    text_columns = [line for path in files for line in re.findall(r"TextColumn\(\"\{.*\)", path.read_text())]
    assert not [line for line in text_columns if "markup=False" not in line and "task.completed" not in line]


def test_cells_of_a_table_do_not_control_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    print_table(["name"], [["a\x1b[2Jb"]])
    assert "a[2Jb" in capsys.readouterr().out
