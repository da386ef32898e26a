"""Every format of samples passes the shipped conformance suite."""

from __future__ import annotations

import io
import json
import tarfile

import numpy as np
import pyarrow as pa

from penstock.testing.samples import CONTENTS, LABELS, SampleFormatContract
from tests.unit.test_blocks_mds import write as write_mds


class TestImages(SampleFormatContract):
    format = "images"

    def make(self, folder):
        for number, (content, label) in enumerate(zip(CONTENTS, LABELS, strict=True)):
            (folder / f"class{label}").mkdir(exist_ok=True)
            (folder / f"class{label}" / f"{number:03d}.png").write_bytes(content)
        return folder


class TestWebDataset(SampleFormatContract):
    format = "webdataset"
    columns = ("png", "cls")

    def make(self, folder):
        for shard in range(2):
            with tarfile.open(folder / f"{shard}.tar", "w") as archive:
                for number in range(20 * shard, 20 * shard + 20):
                    for extension, content in (("cls", str(LABELS[number]).encode()), ("png", CONTENTS[number])):
                        info = tarfile.TarInfo(f"{number:03d}.{extension}")
                        info.size = len(content)
                        archive.addfile(info, io.BytesIO(content))
        return str(folder / "*.tar")


class TestMds(SampleFormatContract):
    format = "mds"

    def make(self, folder):
        labels = [np.int64(label).tobytes() for label in LABELS]
        shards = [{"image": CONTENTS[at : at + 20], "label": labels[at : at + 20]} for at in (0, 20)]
        return write_mds(folder, {"image": "bytes", "label": "int"}, shards)

    def damaged(self, folder):
        return folder / "shard.00001.mds"


class TestHuggingFace(SampleFormatContract):
    format = "hf"

    def make(self, folder):
        media = pa.array([{"bytes": content, "path": None} for content in CONTENTS])
        table = pa.table({"image": media, "label": LABELS})
        features = {"image": {"_type": "Image"}, "label": {"dtype": "int64", "_type": "Value"}}
        names = [f"data-{number:05d}-of-00002.arrow" for number in range(2)]
        for number, name in enumerate(names):
            with pa.ipc.new_stream(folder / name, table.schema) as writer:
                writer.write_table(table.slice(20 * number, 20))
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
        (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
        return folder

    def damaged(self, folder):
        return folder / "data-00001-of-00002.arrow"
