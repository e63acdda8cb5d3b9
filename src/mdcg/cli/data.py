"""Commands for datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mdcg.cli.app import app, data_app
from mdcg.errors import MdcgError, unknown
from mdcg.terminal import say


@data_app.command()
def get(
    name: Annotated[str, typer.Argument(help="A dataset's name, see 'mdcg list datasets'")],
    data: Annotated[Path | None, typer.Option(help="Folder or archive of the dataset.")] = None,
) -> None:
    """Download a dataset where it is not at hand, verify it, and prepare its cache."""
    from mdcg.data import Downloaded, load, record_of
    from mdcg.data.source import ARCHIVES

    record = record_of(name)
    if data is not None and isinstance(record, Downloaded) and not data.name.endswith((*ARCHIVES, *record.downloads)):
        _make_folder(data)
    dataset = load(name, data, download=True)
    say(
        f"{name}: {len(dataset.train):,} training and {len(dataset.test):,} test images of {dataset.classes} classes, "
        "ready."
    )


@data_app.command()
def verify(
    name: Annotated[str, typer.Argument(help="A dataset's name, or folder:PATH")],
    data: Annotated[Path | None, typer.Option(help="Folder or archive of the dataset.")] = None,
    image_size: Annotated[int | None, typer.Option(help="For a folder: as given when training.")] = None,
) -> None:
    """Check every byte of a dataset and of its cache."""
    from mdcg.data import verify as verify_dataset

    say(verify_dataset(name, data, image_size))


@app.command()
def cache(
    names: Annotated[list[str] | None, typer.Argument(help="Only these files.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove them; what is needed again is made again.")] = False,
) -> None:
    """Show, or remove, what lies in the cache folder: images as they were read, and archives that were downloaded."""
    from mdcg.data.cache import cache_folder
    from mdcg.data.load import cached_files
    from mdcg.files import remove_partial

    remove_partial(cache_folder())
    files = {file.name: file for file in cached_files()}
    for name in names or ():
        if name not in files:
            raise unknown("file in the cache", name, files)
    chosen = [file for name, file in files.items() if not names or name in names]
    for file in chosen:
        say(f"{file.name}  {file.size / 1e6:,.1f} MB  {file.content}")
        if clear:
            file.remove()
    total = f"{len(chosen)} file{'' if len(chosen) == 1 else 's'}, {sum(file.size for file in chosen) / 1e6:,.1f} MB"
    say(f"{total}, {'removed from' if clear else 'in'} {cache_folder()}")


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MdcgError(f"cannot create {path}: {error.strerror}; choose another folder with --data.") from error
