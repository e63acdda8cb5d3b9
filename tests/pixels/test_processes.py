"""Images decoded by processes: the same pixels and sentences as without, whatever happens to a process."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mdcg import programs
from mdcg.data import ImageFormat, ImageReader
from mdcg.errors import MachineError
from mdcg.pixels import decode as decoding
from mdcg.pixels import processes
from mdcg.pixels.decode import BadImage, Decoded, Encoded
from mdcg.pixels.processes import _Worker, decode_all

FORMAT = ImageFormat(12, "fit", (10, 20, 30))
SOURCE = Path(processes.__file__).parent.parent.parent


class Started(list[_Worker]):
    """The processes that were started, and how often they were asked."""

    asked = 0


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Processes for any number of images, two and one more."""
    watched = Started()

    class Watched(_Worker):
        def __init__(self, format: ImageFormat, settings: dict[str, Any]) -> None:
            super().__init__(format, settings)
            watched.append(self)

        def ask(self, files: Sequence[Encoded]) -> list[Decoded | None]:
            watched.asked += 1
            return super().ask(files)

    monkeypatch.setattr(processes, "EACH", 1)
    monkeypatch.setattr(processes, "CHUNK", 5)
    monkeypatch.setattr(processes, "cores", lambda: 2)
    monkeypatch.setattr(processes, "_Worker", Watched)
    return watched


def some_files(folder: Path) -> list[Encoded]:
    """Images of many kinds, in no order, and what is none."""
    rng = np.random.default_rng(0)
    for number in range(30):
        pixels = Image.fromarray(rng.integers(0, 256, (9 + number, 20, 3), np.uint8))
        turned = Image.Exif()
        turned[0x0112] = 1 + number % 8
        pixels.save(folder / f"{number}.jpg", exif=turned)
    pixels.convert("RGBA").save(folder / "transparent.png")
    pixels.convert("P").save(folder / "palette.gif")
    Image.fromarray(np.arange(400, dtype=np.uint16).reshape(20, 20) * 100).save(folder / "deep.png")
    Image.fromarray(np.ones((4, 4), np.float32)).save(folder / "float.tif")
    (folder / "cut.jpg").write_bytes((folder / "3.jpg").read_bytes()[:-300])
    (folder / "none.png").write_bytes(b"no image")
    (folder / "empty.png").touch()
    (folder / "folder.png").mkdir()
    (folder / "odd\n\udce9.jpg").write_bytes((folder / "4.jpg").read_bytes())
    files = [*folder.iterdir(), folder / "missing.png"]
    contents = [Encoded(f"content of {file.name}", file.read_bytes()) for file in files if file.is_file()]
    return [one for pair in zip(contents, map(encoded, files), strict=False) for one in pair] + [encoded(files[-1])]


def encoded(path: Path) -> Encoded:
    return Encoded(str(path), path)


def outcomes(files: list[Encoded], hashed: bool = True) -> list[tuple[object, ...]]:
    with decode_all(files, FORMAT, hashed) as decoded:
        return [
            (str(one.image), one.image.why, one.sha1)
            if isinstance(one.image, BadImage)
            else (one.image.tobytes(), one.image.shape, one.sha1)
            for one in decoded
        ]


def are_gone(workers: list[_Worker]) -> bool:
    return all(worker.process.poll() is not None for worker in workers)


@pytest.mark.parametrize("hashed", [False, True])
def test_the_same_with_and_without_processes(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch, hashed: bool
) -> None:
    files = some_files(tmp_path)
    found = outcomes(files, hashed)
    assert len(started) == 3
    assert started.asked == -(-len(files) // 5)
    assert are_gone(started)
    monkeypatch.setattr(processes, "EACH", len(files))
    assert outcomes(files, hashed) == found
    assert len(started) == 3
    words = [one[1] for one in found if isinstance(one[1], str)]
    for word, times in ((decoding.DAMAGED, 2), (decoding.UNKNOWN, 4), ("not a file", 1), ("not of 8 or 16 bits", 2)):
        assert words.count(word) == times
    assert all(len(str(one[2])) == 40 for one in found if not isinstance(one[1], str)) == hashed


def test_large_images_are_decoded_here(tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of them no two are decoded at a time, so that memory suffices."""
    files = [encoded(tmp_path / f"{number}.png") for number in range(8)]
    for number, file in enumerate(files):
        Image.new("RGB", (10, 10 if number % 2 else 30), (number, 0, 0)).save(file.name)
    here = []
    attempt = decoding.attempt

    def watched(file: Encoded, format: ImageFormat, hashed: bool = False) -> Decoded:
        here.append(file)
        return attempt(file, format, hashed)

    monkeypatch.setattr(processes, "attempt", watched)
    monkeypatch.setattr(processes, "LARGE", 200)
    with decode_all(files, ImageFormat(8)) as decoded:
        assert [int(one.pixels[4, 4, 0]) for one in decoded] == list(range(8))
    assert started.asked
    assert here == files[::2]
    # What a person allows holds for processes too.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with decode_all(files, ImageFormat(8)) as decoded:
        assert [isinstance(one.image, BadImage) for one in decoded] == [True, False] * 4


def test_a_process_that_is_killed_is_told_in_a_sentence(tmp_path: Path, started: Started) -> None:
    files = some_files(tmp_path)
    with decode_all(files, FORMAT) as decoded:
        next(decoded)
        for worker in started:
            os.kill(worker.process.pid, signal.SIGKILL)
        with pytest.raises(MachineError) as error:
            list(decoded)
    text = str(error.value)
    assert text.startswith("a process that decodes images has ended (Killed) between ")
    assert "\n" not in text
    text.encode()  # can be printed
    assert are_gone(started)


def test_a_process_without_memory_blames_no_image(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [encoded(tmp_path / f"{number}.png") for number in range(8)]
    for number, file in enumerate(files):
        Image.new("RGB", (10, 10), (number, 0, 0)).save(file.name)
    expected = outcomes(files)

    def fail(*_: object) -> None:
        raise MemoryError

    starved = "import mdcg.pixels.decode as d; d._resized = lambda *_: bytes(2**62); importlib.import_module"
    monkeypatch.setattr(programs, "START", programs.START.replace("importlib.import_module", starved))
    asked = started.asked
    assert outcomes(files) == expected  # it had memory here
    assert started.asked > asked
    monkeypatch.setattr(decoding, "_resized", fail)
    reader = ImageReader(FORMAT, on_error="skip")
    with pytest.raises(MachineError, match=r"not enough memory to decode .*0\.png"):
        reader.read([file.name for file in files])
    assert (reader.used, reader.skipped) == (0, [])


def test_processes_end_where_not_all_images_are_wanted(tmp_path: Path, started: Started) -> None:
    with contextlib.suppress(KeyboardInterrupt), decode_all(some_files(tmp_path), FORMAT) as decoded:
        next(decoded)
        assert not are_gone(started)
        raise KeyboardInterrupt
    assert are_gone(started)


def test_a_process_ends_with_the_one_that_asks(started: Started) -> None:
    worker = processes._Worker(FORMAT, {**asdict(FORMAT), "hashed": False, "pixels": 100})
    assert worker.is_ready()
    worker.questions.close()
    assert worker.process.wait(timeout=60) is not None
    worker.end()


@pytest.mark.parametrize("hindrance", ["limit", "import", "frozen", "embedded", "one core"])
def test_where_no_process_can_be_started_threads_decode(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch, hindrance: str
) -> None:
    files = some_files(tmp_path)
    expected = outcomes(files)
    asked = started.asked
    if hindrance == "limit":

        def refuse(*args: object, **options: object) -> None:
            raise BlockingIOError(11, "Resource temporarily unavailable")

        monkeypatch.setattr(subprocess, "Popen", refuse)
    elif hindrance == "import":
        monkeypatch.setattr(programs, "START", "import mdcg.not_here")
    elif hindrance == "frozen":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    elif hindrance == "embedded":
        monkeypatch.setattr(sys, "executable", "/bin/true")
    else:
        monkeypatch.setattr(processes, "cores", lambda: 1)
    assert outcomes(files) == expected
    assert started.asked == asked


def test_a_reader_tells_the_same(tmp_path: Path, started: Started) -> None:
    for number in range(20):
        Image.new("RGB", (6, 6), (number, 0, 0)).save(tmp_path / f"{number:02}.png")
    (tmp_path / "07.png").write_bytes(b"no image")
    (tmp_path / "13.png").write_bytes((tmp_path / "12.png").read_bytes()[:-30])
    reader = ImageReader(ImageFormat(6), on_error="skip")
    images, kept = reader.read(reader.find(tmp_path))
    assert kept.tolist() == [number for number in range(20) if number not in (7, 13)]
    assert images[:, 0, 0, 0].tolist() == kept.tolist()
    assert reader.summary() == "used 18, skipped 2: 2 damaged (07.png, 13.png)"
    strict = ImageReader(ImageFormat(6))
    with pytest.raises(BadImage, match=r"07\.png is not an image of a known format"):
        strict.read(strict.find(tmp_path))
    assert started.asked
    assert are_gone(started)


def test_nothing_of_a_program_is_imported_again(tmp_path: Path) -> None:
    """A script without `if __name__ == "__main__"`, which prints on the way, as its own files do."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (7, 8, 9)).save(buffer, "PNG")
    (tmp_path / "a.png").write_bytes(buffer.getvalue())
    script = tmp_path / "script.py"
    script.write_text(
        "print('begun')\n"
        "import sys\n"
        "from pathlib import Path\n"
        f"sys.path.insert(0, {str(SOURCE)!r})\n"
        "from mdcg.pixels import processes\n"
        "from mdcg.pixels.decode import Encoded, ImageFormat\n"
        "processes.EACH, processes.cores = 1, lambda: 2\n"
        "asked = []\n"
        "ask = processes._Worker.ask\n"
        "processes._Worker.ask = lambda worker, files: asked.append(len(files)) or ask(worker, files)\n"
        "with processes.decode_all([Encoded('a', Path('a.png'))] * 300, ImageFormat(8)) as decoded:\n"
        "    print(sum(int(one.pixels.sum()) for one in decoded), sum(asked))\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-I", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["begun", str(300 * 64 * 24), "300", "False"]
    assert not done.stderr
