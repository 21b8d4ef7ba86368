from __future__ import annotations

from quiver_actors.base.config.lines import lines_of


def test_every_way_to_write_a_key_is_found_where_it_begins() -> None:
    text = '''
a = 1
b.c = 2  # "d = 3"
"quo ted".e = 3

[table]
f = """
g = 4
[h]
"""
i = [
  1, # j = 5
  { k = 6 },
]
l = { m = { n = 7 } }

[table.deep.er]
o = 8
[[array]]
p = 9
'''
    assert lines_of(text) == {
        ("a",): 2,
        ("b",): 3,
        ("b", "c"): 3,
        ("quo ted",): 4,
        ("quo ted", "e"): 4,
        ("table",): 6,
        ("table", "f"): 7,
        ("table", "i"): 11,
        ("table", "l"): 15,
        ("table", "l", "m"): 15,
        ("table", "l", "m", "n"): 15,
        ("table", "deep"): 17,
        ("table", "deep", "er"): 17,
        ("table", "deep", "er", "o"): 18,
        ("array",): 19,
    }


def test_no_text_has_no_keys() -> None:
    assert lines_of("") == {}
