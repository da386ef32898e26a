"""Folders of images: classes, order, bytes untouched, and everything that a folder can have wrong."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from penstock.blocks.samples import folders
from penstock.blocks.samples.features import noted_features
from penstock.blocks.samples.formats import sample_format
from penstock.errors import CorruptFileError, SourceError, SourceNotFoundError, UsageError

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


def write(root: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PNG + bytes([number]) * (number + 1))
    return root


def converted(source: object, tmp_path: Path, **options: object) -> pa.Table:
    penstock.convert(source, tmp_path / "out.arrow", **options)
    with pa.memory_map(str(tmp_path / "out.arrow")) as file:
        return pa.ipc.open_file(file).read_all()


def test_a_folder_per_class(tmp_path):
    root = write(tmp_path / "in", "dog/b.png", "dog/a.JPG", "cat/z.jpeg", "cat/deep/y.webp", "bird/x.gif")
    done = penstock.convert(root, tmp_path / "out.arrow")
    assert (done.rows, done.skipped) == (5, 0)
    table = converted(root, tmp_path)
    assert table["path"].to_pylist() == ["bird/x.gif", "cat/z.jpeg", "cat/deep/y.webp", "dog/a.JPG", "dog/b.png"]
    assert table["label"].to_pylist() == [0, 1, 1, 2, 2]
    for path, content in zip(table["path"].to_pylist(), table["image"].to_pylist()):
        assert content == (root / path).read_bytes()
    assert table.schema.field("image").type == pa.binary()
    assert noted_features(table.schema) == {
        "image": {"_type": "Image"},
        "label": {"names": ["bird", "cat", "dog"], "_type": "ClassLabel"},
        "path": {"dtype": "string", "_type": "Value"},
    }


def test_a_flat_folder_has_no_labels(tmp_path):
    table = converted(write(tmp_path / "in", "b.png", "a.png"), tmp_path)
    assert table.column_names == ["image", "path"]
    assert table["path"].to_pylist() == ["a.png", "b.png"]
    assert noted_features(table.schema) == {"image": {"_type": "Image"}}


def test_other_files_are_passed_over_and_counted(tmp_path):
    root = write(tmp_path / "in", "cat/a.png", "cat/notes.txt", "dog/b.png", "README.md", "cat/.hidden.png")
    assert penstock.convert(root, tmp_path / "out.arrow").skipped == 2
    assert converted(root, tmp_path)["path"].to_pylist() == ["cat/a.png", "dog/b.png"]


def test_many_images_come_in_order_within_a_few_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "BATCH_BYTES", 300)
    monkeypatch.setattr("penstock.parallel.LIMIT", 200)
    root = write(tmp_path / "in", *(f"{n % 3}/{n:03d}.png" for n in range(100)))
    table = converted(root, tmp_path)
    assert table["path"].to_pylist() == sorted(f"{n % 3}/{n:03d}.png" for n in range(100))
    assert all(c == (root / p).read_bytes() for c, p in zip(table["image"].to_pylist(), table["path"].to_pylist()))


def test_only_the_columns_kept_are_written(tmp_path):
    root = write(tmp_path / "in", "cat/a.png", "dog/b.png")
    assert converted(root, tmp_path, exclude=["path"]).column_names == ["image", "label"]


def test_an_empty_class_is_refused(tmp_path):
    root = write(tmp_path / "in", "cat/a.png", "dog/notes.txt")
    with pytest.raises(SourceNotFoundError, match=r"the class folder .*dog holds no image .* remove it or fill it"):
        converted(root, tmp_path)


def test_images_beside_class_folders_are_refused(tmp_path):
    root = write(tmp_path / "in", "cat/a.png", "stray.png")
    with pytest.raises(UsageError, match=r"images beside its folders \(stray\.png\)"):
        converted(root, tmp_path)


def test_splits_are_not_taken_for_classes(tmp_path):
    root = write(tmp_path / "in", "train/cat/a.png", "train/dog/b.png", "val/cat/c.png", "val/dog/d.png")
    with pytest.raises(UsageError, match="several splits: train, val; name one with split="):
        converted(root, tmp_path)
    table = converted(root, tmp_path, split="val")
    assert table["path"].to_pylist() == ["cat/c.png", "dog/d.png"]
    with pytest.raises(UsageError, match="no split 'test'; it has: train, val"):
        converted(root, tmp_path, split="test")
    with pytest.raises(UsageError, match="holds no folders"):
        converted(write(tmp_path / "flat", "a.png"), tmp_path, split="val")


def test_an_empty_image_is_told_by_name(tmp_path):
    root = write(tmp_path / "in", "cat/a.png")
    (root / "cat" / "b.png").write_bytes(b"")
    with pytest.raises(CorruptFileError, match=r"b\.png is empty \(0 bytes\)"):
        converted(root, tmp_path)
    assert not (tmp_path / "out.arrow").exists()


def test_a_broken_link_is_told_by_name(tmp_path):
    root = write(tmp_path / "in", "cat/a.png")
    os.symlink(tmp_path / "nowhere.png", root / "cat" / "b.png")
    with pytest.raises(SourceError, match=r"b\.png cannot be read: No such file"):
        converted(root, tmp_path)


def test_a_folder_without_images(tmp_path):
    write(tmp_path / "in", "a.txt")
    with pytest.raises(SourceNotFoundError, match="holds no image"):
        converted(tmp_path / "in", tmp_path, format="images")
    with pytest.raises(SourceNotFoundError, match="not a folder"):
        converted(tmp_path / "none", tmp_path, format="images")


def test_two_kinds_in_a_folder_are_ambiguous(tmp_path):
    root = write(tmp_path / "in", "a.png", "labels.csv")
    with pytest.raises(UsageError, match=r"holds a folder of images \(a\.png\) and tables \(labels\.csv\); say which"):
        converted(root, tmp_path)
    assert converted(root, tmp_path, format="images").num_rows == 1
    write(root, "b.tar")
    with pytest.raises(UsageError, match=r"images.*tables.*WebDataset tars \(b\.tar\)"):
        sample_format(root)


def test_open_says_how_to_convert(tmp_path):
    root = write(tmp_path / "in", "cat/a.png")
    with pytest.raises(SourceError, match=rf"a folder of images, .*penstock convert {root} DST\.arrow"):
        penstock.open(root)


def test_nothing_is_logged_without_cause(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        converted(write(tmp_path / "in", "a.png"), tmp_path)
    assert not caplog.records
