"""Tables: laid out, cut and thinned out to the width of a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidestep.cli.tables import Column, cut, display_width, render

COLUMNS = (
    Column("HITS", right=True),
    Column("RATE", right=True, rank=1),
    Column("PROBE", minimum=6),
    Column("MODULE", minimum=4, rank=2),
)
ROWS = [("12", "3.5", "malloc", "libc.so.6"), ("1024", "", "a_rather_long_name", "libc.so.6")]


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert render(COLUMNS, ROWS, None) == [
        "HITS  RATE  PROBE               MODULE",
        "  12   3.5  malloc              libc.so.6",
        "1024        a_rather_long_name  libc.so.6",
    ]


def test_the_widest_column_is_cut_first() -> None:
    assert render(COLUMNS, ROWS, 36) == [
        "HITS  RATE  PROBE          MODULE",
        "  12   3.5  malloc         libc.so.6",
        "1024        a_rather_lo..  libc.so.6",
    ]


def test_what_cannot_be_cut_any_more_is_left_out_by_rank() -> None:
    assert render(COLUMNS, ROWS, 20)[0] == "HITS  RATE  PROBE"
    assert render(COLUMNS, ROWS, 14) == ["HITS  PROBE", "  12  malloc", "1024  a_rath.."]


def test_the_narrowest_terminal_gets_cut_lines() -> None:
    assert render(COLUMNS, ROWS, 5) == ["HIT..", "  1..", "102.."]


def test_columns_without_text_are_left_out() -> None:
    assert render(COLUMNS, [("1", "", "f", "")], None) == ["HITS  PROBE", "   1  f"]


def test_a_table_without_rows_has_its_heading() -> None:
    assert render(COLUMNS, [], None) == ["HITS  RATE  PROBE  MODULE"]


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("malloc", 6, "malloc"),
        ("malloc", 5, "mal.."),
        ("malloc", 2, ".."),
        ("malloc", 1, "."),
        ("malloc", 0, ""),
        ("函数", 4, "函数"),
        ("函数名", 5, "函.."),
        ("e\u0301t\u00e9", 3, "e\u0301t\u00e9"),
    ],
)
def test_cut(text: str, width: int, expected: str) -> None:
    assert cut(text, width) == expected


@given(
    st.lists(st.tuples(*[st.text("abcß函 ", max_size=30)] * len(COLUMNS)), max_size=5),
    st.integers(min_value=1, max_value=60),
)
def test_no_line_is_wider_than_asked(rows: list[tuple[str, ...]], width: int) -> None:
    lines = render(COLUMNS, rows, width)
    assert len(lines) == len(rows) + 1
    assert all(display_width(line) <= width for line in lines)
