"""Environment variables that turn something off."""

from __future__ import annotations

import os

from mdcg.errors import unknown


def switched_off(variable: str, word: str) -> bool:
    """Whether the variable says the word; another word is a mistake, not a wish."""
    said = os.environ.get(variable, "")
    if said not in ("", word):
        raise unknown(f"value of {variable}", said, (word,))
    return said == word
