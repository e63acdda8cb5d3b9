"""The mutation script: what it changes and what it leaves alone; and the whole of it, on a package of a few lines."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "tools"))

import mutate
from mutants import Mutant, mutants_of, places_of

TOOLS = Path(mutate.__file__).parent


def changed(line: str) -> set[str]:
    """What becomes of one statement in a function."""
    text = f"def f():\n    {line}\n"
    return {ast.unparse(ast.parse(mutant.source).body[0]).splitlines()[1].strip() for mutant in mutants_of("a", text)}


@pytest.mark.parametrize(
    ("line", "mutants"),
    [
        ("if a < b: pass", {"if a <= b:", "if a > b:"}),
        ("if a: pass", {"if not a:"}),
        ("if not a: pass", {"if a:"}),
        ("a = b == c", {"a = b != c"}),
        ("a = b in c", {"a = b not in c"}),
        ("a = b + c", {"a = b - c"}),
        ("a = 'x' + c", set()),
        ("a = b // 2", {"a = b * 2", "a = b // 3", "a = b // 1"}),
        ("a = 0.5", {"a = 1.5", "a = -0.5"}),
        ("a = True", {"a = False"}),
        ("a = b and c", {"a = b or c", "a = b", "a = c"}),
        ("a = -b", {"a = b"}),
        ("a = b if c else d", {"a = d if c else b"}),
        ("a = b[:, 1:]", {"a = b", "a = b[:, 2:]", "a = b[:, 0:]"}),
        ("a = f(b, c, key=d)", {"a = f(c, b, key=d)", "a = f(b, c)"}),
        ("a = b.detach()", {"a = b"}),
        ("a = min(b, c)", {"a = max(b, c)"}),
        ("a = [b for b in c if d]", {"a = [b for b in c]"}),
        ("a.b = c", {"pass"}),
        ("a = a.b", {"pass"}),
        ("a += b", {"pass"}),
        ("f(a)", {"pass"}),
        ("return a", {"return None"}),
        ("raise KeyError(f'{a + 1}')", {"pass"}),
        ("a = 'text'", set()),
        ("'''A docstring.'''", set()),
        ("assert a < b", set()),
        ("a: list[int] = b", set()),
        ("a = f'{b + 1}'", set()),
        ("logger.info('%s', a + 1)", set()),
        ("a = isinstance(b, int | str)", set()),
    ],
)
def test_what_becomes_of_a_line(line: str, mutants: set[str]) -> None:
    assert changed(line) == mutants


def test_a_mutant_says_where_it_is_and_is_known_again_elsewhere() -> None:
    text = 'class A:\n    def f(self, a):\n        """At most ½."""\n        return a < 1\n'
    one = next(mutant for mutant in mutants_of("room/a.py", text) if "<=" in mutant.new)
    assert str(one) == "room/a.py:4 in A.f\n    - return a < 1\n    + return (a <= 1)"
    assert one.source == text.replace("a < 1", "(a <= 1)")
    moved = next(mutant for mutant in mutants_of("room/a.py", "B = 3\n\n" + text) if "<=" in mutant.new)
    assert (moved.lines, moved.key) == ((6, 6), one.key)


SOURCE = '''
LIMIT = 10

def capped(a, b):
    """At most LIMIT."""
    if a + b > LIMIT:
        return LIMIT
    return a + b

def unseen(a):
    return not a

def count(n):
    while n:
        n -= 1
    return n

class Counter:
    def above(self, n, least=3):
        return n > least
'''
TESTS = """
from functools import cache
from pack.room.sums import Counter, capped, count

@cache
def found():
    return count(3)

def test_capped():
    assert capped(3, 4) == 7
    assert capped(30, 4) == 10

def test_above():
    assert Counter().above(4)
    assert not Counter().above(3)

def test_count():
    assert found() == 0

def test_that_fails_anyhow():
    assert found() == 1
"""
EQUIVALENT = """
[[mutant]]
where = "room/sums.py capped"
old = "if a + b > LIMIT:"
new = "if (a + b >= LIMIT):"
reason = "Both are LIMIT then."
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package and its tests, which need no plugins: pytest starts sooner without."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(mutate, "PYTEST", [word for word in mutate.PYTEST if "hypothesis" not in word])
    root = tmp_path / "tiny"
    for name, content in {
        "src/pack/__init__.py": "",
        "src/pack/room/__init__.py": "",
        "src/pack/room/sums.py": SOURCE,
        "tests/room/test_sums.py": TESTS,
        "equivalent.toml": EQUIVALENT,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def test_the_whole_of_it(tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants that a test notices, that none notices, that none executes; and one that changes nothing."""
    chosen = {">= LIMIT", "(a - b) > LIMIT", "LIMIT = 11", "return a", "least=4"}
    everything = mutate.drawn

    def some(*asked: object) -> list[Mutant]:
        return [one for one in everything(*asked) if any(part in one.new for part in chosen)]  # type: ignore[arg-type]

    monkeypatch.setattr(mutate, "drawn", some)
    words = ["--root", str(tiny), "--rooms", "room", "--equivalent", str(tiny / "equivalent.toml")]
    mutate.main(words)
    said = capsys.readouterr().out
    assert "3 tests in" in said
    assert "is not used: tests/room/test_sums.py::test_that_fails_anyhow\n" in said
    assert "    + LIMIT = 11\n    noticed: tests/room/test_sums.py::test_capped" in said
    assert "    + def above(self, n, least=4):\n    noticed: tests/room/test_sums.py::test_above" in said
    gaps = said.split("that no test notices:")[1]
    assert "room/sums.py:6 in capped\n    - if a + b > LIMIT:\n    + if (a - b) > LIMIT:\n    1 tests were run" in gaps
    assert "room/sums.py:11 in unseen\n    - return not a\n    + return a\n    0 tests were run" in gaps
    assert "    Both are LIMIT then.\n" in gaps
    assert "\n2 of 5 noticed: 40.0%\nwithout 1 that are equivalent: 2 of 4: 50.0%\n" in gaps
    assert (tiny / "src/pack/room/sums.py").read_text() == SOURCE
    assert (tiny / ".mutation/measured.json").is_file()


def test_what_never_ends_is_ended(tiny: Path, tmp_path: Path) -> None:
    tree = mutate.Tree(tiny, tmp_path)
    tree.write("room/sums.py", SOURCE.replace("n -= 1", "n -= 0"))
    assert tree.pytest(["tests"], {}, seconds=3) is None


def test_no_time(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not finished counts neither way."""
    mutate.main(["--root", str(tiny), "--rooms", "room", "--mutants", "3", "--minutes", "0"])
    assert "0 of 0 noticed: 0.0%\n3 of those drawn were not finished in time\n" in capsys.readouterr().out


def test_what_is_called_equivalent_is_still_there() -> None:
    """Each entry is a mutant of the source as it is now; one whose line has changed is to be looked at again."""
    package = mutate.package_in(TOOLS.parent)
    for key in mutate.equivalent(TOOLS / "equivalent.toml"):
        path, scope = key.split(":", 1)[0].split(" ")
        text = (package / path).read_text()
        here = [place.mutant(text) for place in places_of(path, text) if place.scope.name == scope]
        assert key in {mutant.key for mutant in here if mutant}, key
