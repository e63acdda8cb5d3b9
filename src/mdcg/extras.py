"""Optional packages, which only some people need: loaded when they are used."""

from __future__ import annotations

import importlib
from typing import Any

from mdcg.errors import MdcgError


def extra(module: str, name: str, purpose: str) -> Any:
    """The module that the extra `name` brings, or a sentence on how to get it."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except Exception as error:  # a package that does not fit another one raises whatever it likes
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            raise MdcgError(f"{purpose} needs {package}, which is not installed: pip install 'mdcg[{name}]'.") from None
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise MdcgError(
            f"{purpose} needs {package}, which cannot be loaded ({reason}): pip install --upgrade 'mdcg[{name}]'."
        ) from error
