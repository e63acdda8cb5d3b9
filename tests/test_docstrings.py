"""Docstrings stand by themselves: none is a fragment that only continues a name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import mdcg

#: Words that lean on something before them: prepositions, conjunctions, and pronouns for what is not yet named.
LEANING = re.compile(
    r"(After|Also|And|Around|As|At|Because|Before|Beside|Best|Between|By|During|For|From|If|In|Into|Its|Newest|None"
    r"|Nothing|Of|On|Once|Or|Ours|Over|Since|So|Some|That|The same|Their|They|Those|Through|To|Until|Up|While|With"
    r"|Within|Without|All of them)\b|>>>"
)


def test_docstrings_stand_by_themselves() -> None:
    leaning = []
    for file in sorted(Path(mdcg.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                if LEANING.match(text):
                    leaning.append(f"{file}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}")
    assert not leaning, "say what it is or does, in a sentence of its own:\n" + "\n".join(leaning)
