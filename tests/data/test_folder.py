"""Folders of images, good and bad ones, and places where nothing may be written."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mdcg.data import cache, load, verify
from mdcg.data.content import Arrays, digest_of
from mdcg.errors import MdcgError
from mdcg.tensors import write_pieces
from tests.data.conftest import save_image

needs_ordinary_user = pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")


def test_folder_with_train_and_test(photos: Path) -> None:
    dataset = load(f"folder:{photos}", size=16)
    assert dataset.shape == (3, 16, 16)
    assert dataset.class_names == ("<b>eel", "cat", "dog")
    assert dataset.counts().tolist() == [5, 7, 6]
    assert np.bincount(dataset.test.labels).tolist() == [4, 2, 3]
    cats = dataset.train.images[dataset.train.labels == 1].float()
    assert (cats[:4] - 200).abs().max() <= 2  # RGB, L, CMYK, 16-bit
    assert (cats[4] - (200 * 200 + 55 * 255) / 255).abs().max() <= 1  # RGBA: through its transparency white is seen
    assert dataset.mean[0] == pytest.approx(dataset.train.images[..., 0].double().mean().item() / 255)
    assert "and so is its cache" in verify(f"folder:{photos}", size=16)
    (file,) = cache.cache_folder().glob("*.safetensors")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "was damaged and has been removed" in verify(f"folder:{photos}", size=16)
    load(f"folder:{photos}", size=16)
    load(f"folder:{photos}", size=24)
    assert len(list(cache.cache_folder().glob("*.safetensors"))) == 2  # sizes do not drive each other out


def test_folder_split_for_the_user(photos: Path) -> None:
    dataset = load(f"folder:{photos / 'train'}")
    assert dataset.shape == (3, 32, 32)
    assert np.bincount(dataset.test.labels).tolist() == [1, 1, 1]
    assert dataset.counts().tolist() == [4, 6, 5]


def test_a_changed_folder_is_read_again(photos: Path) -> None:
    before = load(f"folder:{photos}")
    save_image(photos / "train/cat/new.png", shade=10)
    after = load(f"folder:{photos}")
    assert len(after.train) == len(before.train) + 1
    assert after.fingerprint != before.fingerprint
    assert len(list(cache.cache_folder().glob("*.safetensors"))) == 1  # the outdated cache is gone


def test_rotated_photos_are_turned(tmp_path: Path) -> None:
    for name in ("a", "b"):
        half = np.zeros((16, 16, 3), np.uint8)
        half[:8] = 255  # bright above
        exif = Image.Exif()
        exif[0x0112] = 3  # upside down
        for split in ("train", "test"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.fromarray(half).save(tmp_path / split / name / "x.png", exif=exif)
    image = load(f"folder:{tmp_path}", size=16).train.images[0]
    assert image[:8].max() == 0
    assert image[8:].min() == 255


def test_bad_folders(photos: Path, tmp_path: Path) -> None:
    def told(name: str, size: int | None = None) -> str:
        with pytest.raises(MdcgError) as error:
            load(name, size=size)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "there is no folder" in told(f"folder:{tmp_path / 'nowhere'}")
    (tmp_path / "bare").mkdir()
    assert "holds no class folder" in told(f"folder:{tmp_path / 'bare'}")
    assert "between 4 and 1024" in told(f"folder:{photos}", size=2)
    broken = photos / "train/cat/broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n not really")
    assert str(broken) in told(f"folder:{photos}")
    whole = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(whole, "PNG")
    broken.write_bytes(whole.getvalue()[:900])
    assert "not a readable image" in told(f"folder:{photos}")
    broken.unlink()
    Image.fromarray(np.zeros((4, 4), np.float32)).save(photos / "train/cat/deep.tiff")
    assert "floating-point" in told(f"folder:{photos}")
    (photos / "train/cat/deep.tiff").unlink()
    (photos / "train/cat/gone.png").symlink_to("/no/such/file")
    assert "gone.png: No such file" in told(f"folder:{photos}")
    (photos / "train/cat/gone.png").unlink()
    (photos / "train/empty").mkdir()
    assert "holds no image" in told(f"folder:{photos}")
    save_image(photos / "train/empty/one.png")
    assert "has no folder in" in told(f"folder:{photos}")
    assert "holds a single image" in told(f"folder:{photos / 'train'}")


def test_names_of_any_bytes(tmp_path: Path) -> None:
    for name in (b"caf\xe9", b"th\xe9"):
        for i in range(3):
            save_image(tmp_path / os.fsdecode(name) / f"{i}\udce9.png")
    assert load(f"folder:{tmp_path}").class_names == ("caf\ufffd", "th\ufffd")


# ------------------------------------------------------------------ where nothing may be written


def test_no_write_permission_for_the_cache(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the cache folder should be")
    monkeypatch.setenv("MDCG_CACHE", str(blocked / "cache"))
    with pytest.raises(MdcgError, match=r"cannot write .*choose a writable"):
        load(f"folder:{photos}")


@needs_ordinary_user
def test_read_only_cache_folder(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    monkeypatch.setenv("MDCG_CACHE", str(locked))
    with pytest.raises(MdcgError, match="Permission denied"):
        load(f"folder:{photos}")


def test_a_cache_with_other_labels_or_images_is_made_anew(
    photos: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load(f"folder:{photos}", size=16).train
    labels, images = whole.labels.copy(), whole.images.clone()  # what is mapped changes with the file
    (file,) = cache.cache_folder().glob("*.safetensors")
    content = file.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    at = content.rindex(labels.tobytes())
    shuffled = labels[::-1].tobytes()
    altered = bytes([content[start] ^ 1])
    for damaged in (
        content[:at] + shuffled + content[at + len(shuffled) :],
        content[:start] + altered + content[start + 1 :],
    ):
        caplog.clear()
        file.write_bytes(damaged)
        again = load(f"folder:{photos}", size=16)
        assert again.train.labels.tolist() == labels.tolist()
        assert again.train.images.equal(images)
        assert caplog.messages == [f"{file}, a dataset in the cache, is damaged; it is made anew from its source."]
    looked: list[Arrays] = []

    def noted(content: Arrays) -> str:
        looked.append(content)
        return digest_of(content)

    monkeypatch.setattr(cache, "digest_of", noted)
    load(f"folder:{photos}", size=16)
    assert not looked  # its images were checked when it was made
    file.touch()
    load(f"folder:{photos}", size=16)
    assert len(looked) == 1
    file.unlink()
    load(f"folder:{photos}", size=16)
    assert len(looked) == 2  # to write it; what was just written is not read back


def test_a_cache_of_before_is_read(photos: Path) -> None:
    """It had no digest of its header."""
    load(f"folder:{photos}", size=16)
    (file,) = cache.cache_folder().glob("*.safetensors")
    content = cache.read_cache(file)
    assert content is not None
    pieces = {name: (tuple(one.shape), one.dtype, [one.numpy()]) for name, one in content.tensors().items()}
    values = {"class_names": content.class_names, "mean": content.mean, "std": content.std, "digest": content.digest}
    copy = file.with_name("before.safetensors")
    with copy.open("wb") as out:
        write_pieces(out, pieces, {"version": 1, **values})
    again = cache.read_whole(copy)
    assert again is not None
    assert again.digest == content.digest
