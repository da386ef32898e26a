"""Columns of encoded images: pixels as Pillow makes them, chance by row, and what a broken image says."""

from __future__ import annotations

import io
import itertools
import tarfile
import warnings

import numpy as np
import PIL.Image
import pyarrow as pa
import pytest
import torch

import penstock
from penstock import seeds
from penstock.errors import ColumnError, DataError, MissingExtraError, UnknownOptionError, UsageError
from penstock.records import Ragged, Records
from penstock.torch import DataLoader, Image, image_decode, image_device
from penstock.torch.image_device import DeviceImageBatches
from penstock.torch.image_kernels import PLACEMENT, place_crop, resample, resample_reference
from penstock.torch.images import ImageWriter

TRAIN = Image(crop="random-resized", size=24, flip=True)


def drawing(height=61, width=83, seed=0):
    """Smooth noise, which JPEG keeps well and resizing changes visibly."""
    chance = np.random.default_rng(seed)
    small = PIL.Image.fromarray(chance.integers(0, 256, (9, 9, 3), np.uint8))
    return small.resize((width, height), PIL.Image.Resampling.BICUBIC)


def encoded(image, form="JPEG", **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def decoded(content):
    return np.asarray(PIL.Image.open(io.BytesIO(content)).convert("RGB"))


def written(image, content, *, row=0, epoch=0, seed=0):
    writer = ImageWriter(image, seed=seed, epoch=epoch, place="data")
    out = writer.empty(1)
    writer.write(Ragged.of([content]).take(np.arange(1)), np.array([row]), out.numpy())
    return out[0].numpy()


def placed(image, height, width, *, row=0, key=0):
    placements = np.zeros(1, PLACEMENT)
    place_crop(image.rules(), np.uint64(key), row, height, width, placements, 0)
    return placements[0]


def resized(content, place, size):
    box = tuple(int(place[side]) for side in ("left", "top", "right", "bottom"))
    image = PIL.Image.fromarray(decoded(content)).crop(box).resize((size, size), PIL.Image.Resampling.BILINEAR)
    pixels = np.asarray(image).transpose(2, 0, 1)
    return pixels[:, :, ::-1] if place["flip"] else pixels


def apart(some, others):
    """The largest difference of two images, in levels."""
    return int(np.abs(some.astype(int) - others.astype(int)).max())


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Sixty JPEGs of several sizes with labels and names, converted."""
    contents = [encoded(drawing(50 + n, 90 - n, n), quality=90) for n in range(60)]
    table = pa.table(
        {"image": pa.array(contents, pa.binary()), "label": np.arange(60) % 5, "name": [f"n{n}" for n in range(60)]}
    )
    path = tmp_path_factory.mktemp("photos") / "photos.arrow"
    penstock.convert(table, path)
    return path, contents


def test_a_random_crop_is_what_pillow_makes_of_it():
    content = encoded(drawing(), "PNG")
    key = seeds.key(3, "images", 2)
    flips = 0
    for row in range(40):
        place = placed(TRAIN, 61, 83, row=row, key=key)
        flips += int(place["flip"])
        assert apart(written(TRAIN, content, row=row, epoch=2, seed=3), resized(content, place, 24)) <= 1
    assert 8 < flips < 32


@pytest.mark.parametrize(("height", "width"), [(61, 83), (200, 90), (24, 24), (13, 300)])
def test_the_center_is_what_resize_and_center_crop_make(height, width):
    content = encoded(drawing(height, width), "PNG")
    short = 28
    tall, wide = (short, int(short * width / height)) if height <= width else (int(short * height / width), short)
    whole = PIL.Image.fromarray(decoded(content)).resize((wide, tall), PIL.Image.Resampling.BILINEAR)
    top, left = round((tall - 24) / 2), round((wide - 24) / 2)
    expected = np.asarray(whole.crop((left, top, left + 24, top + 24))).transpose(2, 0, 1)
    assert apart(written(Image(crop="center", size=24), content), expected) <= 1
    assert apart(written(Image(crop="center", size=24, resize=28), content), expected) <= 1


def test_without_a_crop_the_whole_image_is_resized():
    content = encoded(drawing(), "PNG")
    expected = np.asarray(drawing().resize((40, 30), PIL.Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert apart(written(Image(crop="none", size=(30, 40)), content), expected) <= 1


@pytest.mark.parametrize("crop", ["random-resized", "center", "none"])
def test_resample_and_its_twin(crop):
    image = Image(crop=crop, size=(20, 28), flip=crop != "center")
    pixels = np.asarray(drawing(90, 70))
    for row in range(10):
        placements = np.zeros(1, PLACEMENT)
        place_crop(image.rules(), np.uint64(5), row, 90, 70, placements, 0)
        out = np.empty(image.shape, np.uint8)
        resample(np.ascontiguousarray(pixels.transpose(2, 0, 1)), 0, 0, 1, placements, 0, out)
        assert apart(out, resample_reference(pixels, placements[0], size=(20, 28))) <= 1


@pytest.mark.parametrize("size", [(120, 90), (83, 61), (17, 9), (16, 16), (1, 1), (33, 100)])
@pytest.mark.parametrize(
    "options",
    [
        {"subsampling": 0},
        {"subsampling": 1},
        {"subsampling": 2},
        {"restart_marker_blocks": 3},
        {"quality": 30},
        {"optimize": True},
    ],
    ids=str,
)
def test_plain_jpegs_are_decoded_by_the_kernels_as_libjpeg_does(size, options, monkeypatch):
    monkeypatch.setattr(image_decode.ImageDecoder, "decode", None)
    width, height = size
    content = encoded(drawing(height, width), **{"quality": 90, **options})
    expected = decoded(content).transpose(2, 0, 1)
    difference = np.abs(written(Image(crop="none", size=(height, width)), content).astype(int) - expected)
    assert difference.max() <= 3  # the transform is in floats, and a level of a color's sample is nearly two of blue
    assert difference.mean() < 0.1
    for row in range(5):
        place = placed(TRAIN, height, width, row=row, key=seeds.key(0, "images", 0))
        assert apart(written(TRAIN, content, row=row), resized(content, place, 24)) <= 3


def test_damaged_jpegs_are_never_read_beyond_their_end():
    """Every byte in turn is changed, and the content is cut everywhere: an image or an error comes of it."""
    content = encoded(drawing(24, 24), quality=40, restart_marker_blocks=1)
    chance = np.random.default_rng(0)
    whole = Image(crop="none", size=8)
    failed = 0
    for at in range(0, len(content), 2):
        changed = bytearray(content)
        changed[at] = chance.integers(256)
        for damaged in (bytes(changed), content[:at], content[:at] + content[-2:]):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Pillow's, of what it finds
                try:
                    written(whole, damaged)
                except DataError:
                    failed += 1
    assert failed > 100


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 500), (500, 1), (7, 5), (300, 400)])
def test_crops_stay_within_the_image(height, width):
    for row in range(200):
        place = placed(TRAIN, height, width, row=row)
        assert 0 <= place["left"] < place["right"] <= width
        assert 0 <= place["top"] < place["bottom"] <= height


def test_crops_have_the_areas_and_ratios_that_are_asked_for():
    image = Image(crop="random-resized", size=24, scale=(0.2, 0.6), ratio=(0.5, 2.0))
    places = [placed(image, 1000, 1000, row=row) for row in range(2000)]
    wide = np.array([int(place["right"] - place["left"]) for place in places])
    tall = np.array([int(place["bottom"] - place["top"]) for place in places])
    area, ratio = wide * tall / 1e6, np.log(wide / tall)
    assert 0.199 < area.min() < 0.21
    assert 0.55 < area.max() < 0.601
    assert abs(np.median(ratio)) < 0.05
    assert -0.70 < ratio.min() < -0.65
    assert 0.65 < ratio.max() < 0.70
    assert len({(int(p["left"]), int(p["top"])) for p in places}) > 1900


def test_large_images_are_decoded_at_a_reduced_size_to_nearly_the_same():
    content = encoded(drawing(801, 1203), quality=95)
    image = Image(crop="none", size=48)
    assert placed(image, 801, 1203)["reduce"] == 8
    expected = np.asarray(
        PIL.Image.fromarray(decoded(content)).resize((48, 48), PIL.Image.Resampling.BILINEAR)
    ).transpose(2, 0, 1)
    difference = np.abs(written(image, content).astype(int) - expected)
    assert difference.mean() < 1
    assert difference.max() <= 6


def test_without_simplejpeg_pillow_decodes_to_the_same(monkeypatch):
    contents = [encoded(drawing(), quality=90), encoded(drawing(801, 1203), quality=90)]
    images = [TRAIN, Image(crop="none", size=48)]
    expected = [written(image, content) for image in images for content in contents]
    monkeypatch.setattr(image_decode, "simplejpeg", None)
    for found, wanted in zip((written(i, c) for i in images for c in contents), expected, strict=True):
        assert apart(found, wanted) <= 3


def test_without_any_decoder_the_extra_is_named(monkeypatch, photos):
    monkeypatch.setattr(image_decode, "PIL", None)
    assert written(TRAIN, encoded(drawing())).shape == (3, 24, 24)
    with pytest.raises(MissingExtraError, match=r"penstock\[images\]"):
        written(TRAIN, encoded(drawing(), "PNG"))
    monkeypatch.setattr(image_decode, "simplejpeg", None)
    with pytest.raises(MissingExtraError, match=r"penstock\[images\]"):
        DataLoader(photos[0], 8, columns={"image": TRAIN})


ODD = {
    "palette": lambda: encoded(drawing().quantize(16), "PNG"),
    "palette with transparency": lambda: encoded(drawing().quantize(16), "PNG", transparency=b"\0\1\2"),
    "alpha": lambda: encoded(drawing().convert("RGBA"), "PNG"),
    "grey": lambda: encoded(drawing().convert("L"), "PNG"),
    "two levels": lambda: encoded(drawing().convert("1"), "PNG"),
    "webp": lambda: encoded(drawing(), "WEBP", lossless=True),
    "gif": lambda: encoded(drawing(), "GIF"),
    "grey jpeg": lambda: encoded(drawing().convert("L"), "JPEG", quality=95),
    "cmyk jpeg": lambda: encoded(drawing().convert("CMYK"), "JPEG", quality=95),
    "progressive jpeg": lambda: encoded(drawing(), "JPEG", progressive=True),
    "full colors": lambda: encoded(drawing(), "JPEG", subsampling=0),
    "rotated by exif": lambda: encoded(drawing(), "JPEG", exif=rotation()),
    "bytes after the end": lambda: encoded(drawing(), "JPEG") + b"more",
    "bytes between markers": lambda: (jpeg := encoded(drawing(), "JPEG"))[:2] + b"\xff\xfe\x00\x04hi" + jpeg[2:],
}


def rotation():
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    return exif


@pytest.mark.parametrize("kind", ODD)
def test_odd_images_are_what_pillow_makes_of_them_in_rgb(kind):
    content = ODD[kind]()
    with PIL.Image.open(io.BytesIO(content)) as opened:
        rgb = opened.convert("RGBA" if kind == "palette with transparency" else "RGB").convert("RGB")
    expected = np.asarray(rgb.resize((24, 24), PIL.Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert apart(written(Image(crop="none", size=24), content), expected) <= 2


def test_floats_and_normalized_values():
    content = encoded(drawing())
    pixels = written(Image(crop="none", size=24), content).astype(np.float64) / 255
    floats = written(Image(crop="none", size=24, dtype="float32"), content)
    assert floats.dtype == np.float32
    np.testing.assert_allclose(floats, pixels, atol=1e-6)
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    expected = (pixels - mean[:, None, None]) / deviation[:, None, None]
    np.testing.assert_allclose(written(Image(crop="none", size=24, normalize="imagenet"), content), expected, atol=1e-5)
    own = written(Image(crop="none", size=24, normalize=([0, 0, 0], [2, 2, 2])), content)
    np.testing.assert_allclose(own, pixels / 2, atol=1e-6)


def test_batches_have_the_images_of_their_rows(photos):
    path, contents = photos
    columns = {"image": TRAIN, "label": None, "name": None}
    with DataLoader(path, 8, columns=columns, memory="1MB", row_numbers=True, seed=4) as loader:
        epochs = [list(loader) for _ in range(2)]
    assert list(epochs[0][0]) == ["image", "label", "name", "row_number"]
    assert [len(batch["image"]) for batch in epochs[0]] == [8] * 7 + [4]
    assert sorted(torch.cat([batch["row_number"] for batch in epochs[0]]).tolist()) == list(range(60))
    for epoch, batches in enumerate(epochs):
        for batch in batches:
            assert batch["image"].dtype == torch.uint8
            for pixels, row, label, name in zip(
                batch["image"], batch["row_number"].tolist(), batch["label"], batch["name"]
            ):
                assert (int(label), name) == (row % 5, f"n{row}")
                assert np.array_equal(pixels, written(TRAIN, contents[row], row=row, epoch=epoch, seed=4))


def images(loader):
    return torch.cat([batch["image"] for batch in loader])


@pytest.mark.parametrize("shuffle", ["corgipile", "global", "none"])
def test_the_same_images_with_any_number_of_threads_and_others_in_another_epoch(photos, shuffle):
    def given(**options):
        with DataLoader(photos[0], 16, columns={"image": TRAIN}, shuffle=shuffle, **options) as loader:
            return images(loader), images(loader)

    (first, second), (again, _), (other, _) = given(workers=1), given(workers=3), given(seed=1)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)


def test_a_resumed_epoch_has_the_same_images(photos):
    options = {"columns": {"image": TRAIN, "label": None}, "memory": "1MB"}
    with DataLoader(photos[0], 8, **options) as loader:
        list(loader)
        stream = iter(loader)
        for _ in range(3):
            next(stream)
        state = loader.state_dict()
        rest = list(stream)
    with DataLoader(photos[0], 8, **options) as other:
        other.load_state_dict(state)
        resumed = list(other)
    assert len(resumed) == 5
    for some, same in zip(rest, resumed, strict=True):
        assert torch.equal(some["image"], same["image"])
        assert torch.equal(some["label"], same["label"])


def test_a_loop_may_be_left_early_and_its_threads_end(photos):
    with DataLoader(photos[0], 8, columns={"image": TRAIN}) as loader:
        for _ in itertools.islice(loader, 2):
            pass
        assert len(images(loader)) == 60


def test_a_transform_gets_decoded_images(photos):
    columns = {"image": TRAIN, "label": None}
    with DataLoader(
        photos[0], 30, columns=columns, shuffle="none", transform=lambda batch: batch["image"].float()
    ) as loader:
        whole = torch.cat(list(loader))
    with DataLoader(
        photos[0], 30, columns=columns, shuffle="none", per_sample=True, transform=lambda row: row["image"].float()
    ) as loader:
        assert torch.equal(torch.cat(list(loader)), whole)
    assert whole.dtype == torch.float32


@pytest.mark.parametrize("content", [b"", b"no image", encoded(drawing())[:200], encoded(drawing(), "PNG")[:90]])
def test_a_broken_image_is_named_by_its_row(content, photos):
    contents = list(photos[1][:20])
    contents[13] = content
    table = pa.table({"photo": pa.array(contents, pa.binary())})
    with (
        DataLoader(table, 4, columns={"photo": TRAIN}) as loader,
        pytest.raises(DataError, match="row 13, column 'photo': this image cannot be decoded") as caught,
    ):
        list(loader)
    assert caught.value.place.row == 13


def test_what_becomes_of_columns_has_to_be_said_rightly(photos):
    with pytest.raises(UsageError, match="label") as caught:
        DataLoader(photos[0], columns={"image": TRAIN, "label": int})
    assert caught.value.option == "columns"
    with pytest.raises(ColumnError, match=r"'label' holds int64"):
        DataLoader(photos[0], columns={"label": TRAIN})
    with pytest.raises(ColumnError, match="picture"):
        DataLoader(photos[0], columns={"picture": TRAIN})
    with pytest.raises(UsageError, match=r"penstock\.torch\.DataLoader alone"):
        penstock.batches(photos[0], columns={"image": TRAIN})


@pytest.mark.parametrize(
    ("options", "option", "kind"),
    [
        ({"crop": "middle"}, "crop", UnknownOptionError),
        ({"crop": "none", "size": 0}, "size", UsageError),
        ({"crop": "none", "size": (1, 2, 3)}, "size", UsageError),
        ({"crop": "none", "resize": 256}, "resize", UsageError),
        ({"crop": "center", "resize": 200}, "resize", UsageError),
        ({"crop": "random-resized", "scale": (0.5, 1.5)}, "scale", UsageError),
        ({"crop": "random-resized", "ratio": (2, 1)}, "ratio", UsageError),
        ({"crop": "none", "normalize": "cifar"}, "normalize", UnknownOptionError),
        ({"crop": "none", "normalize": ((0, 0, 0), (1, 1, 0))}, "normalize", UsageError),
        ({"crop": "none", "normalize": "imagenet", "dtype": "uint8"}, "dtype", UsageError),
        ({"crop": "none", "dtype": "float64"}, "dtype", UnknownOptionError),
        ({"crop": "none", "device": "tpu"}, "device", UnknownOptionError),
    ],
)
def test_options_that_cannot_be(options, option, kind):
    with pytest.raises(kind) as caught:
        Image(**options)
    assert caught.value.option == option


def test_folders_and_webdatasets_are_converted_and_read(tmp_path, photos):
    contents = photos[1][:6]
    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        for number, content in enumerate(contents):
            (tmp_path / "in" / f"class{number % 2}").mkdir(parents=True, exist_ok=True)
            (tmp_path / "in" / f"class{number % 2}" / f"{number}.jpg").write_bytes(content)
            for extension, value in (("jpg", content), ("cls", str(number % 2).encode())):
                entry = tarfile.TarInfo(f"{number:04}.{extension}")
                entry.size = len(value)
                tar.addfile(entry, io.BytesIO(value))
    whole = Image(crop="none", size=24)
    expected = {number: written(whole, content).tobytes() for number, content in enumerate(contents)}
    for source, column, order in (
        (tmp_path / "in", "image", [0, 2, 4, 1, 3, 5]),
        (tmp_path / "shard.tar", "jpg", range(6)),
    ):
        converted = penstock.convert(source, tmp_path / f"{column}.arrow").path
        with DataLoader(converted, 6, shuffle="none", columns={column: whole}) as loader:
            given = next(iter(loader))[column]
        assert [pixels.numpy().tobytes() for pixels in given] == [expected[number] for number in order]


def stand_in(contents):
    """Decode as nvJPEG does, by Pillow."""
    try:
        return [torch.from_numpy(decoded(content.numpy().tobytes()).transpose(2, 0, 1).copy()) for content in contents]
    except OSError as error:
        raise RuntimeError("nvJPEG says no more than this") from error


def on_device(contents, image, *, decode=stand_in, sizes=(7, 13)):
    """Finish two batches as on a GPU, but by the processors."""
    finisher = DeviceImageBatches(
        {"image": image},
        lambda batch: batch,
        seed=3,
        place="data",
        row_numbers=True,
        device=torch.device("cpu"),
        decode=decode,
    )
    rows = np.arange(len(contents)) + 100
    batches, start = [], 0
    for size in sizes:
        part = slice(start, start + size)
        batches.append(Records({"image": Ragged.of(contents[part]), "label": rows[part] % 3}, rows[part]))
        start += size
    return list(finisher.run(batches, max(sizes), 2))


@pytest.mark.parametrize(
    "image",
    [
        TRAIN,
        Image(crop="center", size=(24, 20)),
        Image(crop="none", size=24, flip=True),
        Image(crop="random-resized", size=24, normalize="imagenet"),
    ],
    ids=["training", "center", "none", "normalized"],
)
def test_a_device_makes_what_processors_make(image, monkeypatch):
    monkeypatch.setattr(image_device, "_GROUP", 5)
    contents = [encoded(drawing(60 + n, 90 - n, n), quality=90) for n in range(20)]
    contents[4], contents[11], contents[15] = ODD["alpha"](), ODD["cmyk jpeg"](), ODD["bytes after the end"]()
    asked = []

    def decode(images):
        asked.append(len(images))
        return stand_in(images)

    batches = on_device(contents, image, decode=decode)
    assert sum(asked) == 17
    assert max(asked) <= 5
    rows = torch.cat([torch.as_tensor(batch["row_number"]) for batch in batches]).tolist()
    assert rows == list(range(100, 120))
    for found, content, row in zip(images(batches), contents, rows, strict=True):
        expected = written(image, content, row=row, epoch=2, seed=3)
        assert found.numpy().dtype == expected.dtype
        assert np.abs(found.numpy() - expected.astype(float)).max() <= (3 if image.dtype == "uint8" else 0.06)


@pytest.mark.parametrize("broken", [b"", b"no image", encoded(drawing())[:300], b"\xff\xd8 not at all \xff\xd9"])
def test_a_device_names_the_row_of_a_broken_image(broken):
    contents = [encoded(drawing(60, 90, n)) for n in range(20)]
    contents[9] = broken
    with pytest.raises(DataError, match="row 109, column 'image'"):
        on_device(contents, TRAIN)


def test_images_that_a_device_fails_on_are_decoded_by_processors():
    def decode(_):
        raise RuntimeError("Error while decoding JPEG images")

    contents = [encoded(drawing(60, 90, n)) for n in range(20)]
    for some, same in zip(on_device(contents, TRAIN, decode=decode), on_device(contents, TRAIN), strict=True):
        assert torch.equal(some["image"], same["image"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there(photos):
    with pytest.raises(UsageError, match="torch finds none here") as caught:
        DataLoader(photos[0], 8, columns={"image": Image(crop="none", device="cuda")})
    assert (caught.value.option, caught.value.value) == ("device", "cuda")
    several = {"image": TRAIN, "label": Image(crop="none", device="cuda")}
    with pytest.raises(UsageError, match="several devices"):
        DataLoader(photos[0], 8, columns=several)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_makes_what_processors_make(photos):
    def given(device, image):
        columns = {"image": Image(crop=image, size=24, flip=True, device=device), "label": None}
        with DataLoader(photos[0], 8, columns=columns, memory="1MB", pin_memory=True) as loader:
            return [(batch["image"].cpu().int(), batch["label"]) for _ in range(2) for batch in loader]

    for crop in ("random-resized", "center", "none"):
        for (some, label), (others, other) in zip(given("cuda", crop), given("cpu", crop), strict=True):
            assert torch.equal(label, other)
            difference = (some - others).abs().float()
            assert difference.mean() < 1.5  # nvJPEG rounds otherwise, and repeats colors instead of blending them
