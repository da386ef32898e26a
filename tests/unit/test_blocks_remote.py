"""Remote files: S3 against a server on this machine, and web servers with range requests."""

from __future__ import annotations

import http.server
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.blocks.arrow import ArrowSource
from penstock.blocks.conversion import convert
from penstock.blocks.open import open as open_source
from penstock.errors import DataChangedError, SourceError, SourceNotFoundError, UsageError


def table(start=0, rows=300):
    return pa.table({"x": np.arange(start, start + rows, dtype=np.float64), "y": np.arange(rows) % 2})


def read_all(source):
    return pa.Table.from_batches([source.read(b) for b in range(len(source.block_rows))]).to_pydict()


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    server_module = pytest.importorskip("moto.server")
    folder = tmp_path_factory.mktemp("s3")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    patch = pytest.MonkeyPatch()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "*",
    }.items():
        patch.setenv(name, value)
    from pyarrow import fs

    system = fs.S3FileSystem(endpoint_override=f"{host}:{port}", scheme="http", allow_bucket_creation=True)
    system.create_dir("data")
    for number in range(2):
        path = folder / f"{number}.parquet"
        pq.write_table(table(number * 300), path, row_group_size=100)
        with system.open_output_stream(f"data/parts/{number}.parquet") as out:
            out.write(path.read_bytes())
    convert(table(), folder / "a.arrow", label="y", block_size=512)
    with system.open_output_stream("data/a.arrow") as out:
        out.write((folder / "a.arrow").read_bytes())
    with system.open_output_stream("data/a.csv") as out:
        out.write(b"x,y\n1.5,0\n2.5,1\n")
    yield system
    server.stop()
    patch.undo()


def test_parquet_in_a_bucket(bucket):
    for address in (
        "s3://data/parts/",
        "s3://data/parts/*.parquet",
        ["s3://data/parts/0.parquet", "s3://data/parts/1.parquet"],
    ):
        with open_source(address) as source:
            assert source.block_rows.tolist() == [100] * 6
            assert read_all(source)["x"] == list(range(600))
    with open_source("s3://data/parts/0.parquet", block_size=500) as source:
        assert len(source.block_rows) > 6
        assert read_all(source) == table().to_pydict()


def test_arrow_in_a_bucket(bucket):
    with open_source("s3://data/a.arrow") as source:
        assert isinstance(source, ArrowSource)
        assert len(source.block_rows) > 3
        assert source.packed("features", "y", None) is None  # no descriptor to read from
        assert [v[0] for v in read_all(source)["features"]] == list(range(300))


def test_fingerprint_of_a_remote_file(bucket):
    with open_source("s3://data/a.arrow") as source:
        before = source.fingerprint
    with open_source("s3://data/a.arrow") as source:
        assert source.fingerprint == before
    with open_source("s3://data/parts/0.parquet") as source:
        assert source.fingerprint != before


def test_what_is_not_there(bucket):
    with pytest.raises(SourceNotFoundError, match=r"s3://data/none\.parquet"):
        open_source("s3://data/none.parquet")
    with pytest.raises(SourceNotFoundError, match="no file matches"):
        open_source("s3://data/parts/*.arrow")
    with pytest.raises(UsageError, match=r"s3://, .*https://"):
        open_source("ftp://data/a.parquet")


def test_remote_text(bucket, tmp_path):
    pytest.importorskip("penstock.blocks.csv")
    with open_source("s3://data/a.csv") as source:
        assert read_all(source) == {"x": [1.5, 2.5], "y": [0, 1]}
    assert convert("s3://data/a.csv", tmp_path / "a.arrow", label="y").rows == 2


class Ranges(http.server.BaseHTTPRequestHandler):
    content = b""
    tag = "1"
    ranges = True
    failures = 0

    def do_GET(self):
        if type(self).failures:
            type(self).failures -= 1
            self.send_error(503)
            return
        if self.path.startswith("/none"):
            self.send_error(404)
            return
        if not self.ranges:
            self.send_response(200)
            self.end_headers()
            return
        start, stop = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        part = self.content[start : stop + 1]
        self.send_response(206)
        self.send_header("ETag", self.tag)
        self.send_header("Content-Range", f"bytes {start}-{stop}/{len(self.content)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *args):
        pass


@pytest.fixture
def web(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=100)
    kind = type("Serving", (Ranges,), {"content": (tmp_path / "a.parquet").read_bytes()})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", kind
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_web_server(web):
    address, kind = web
    with open_source(f"{address}/a.parquet") as source:
        kind.failures = 1  # one refusal is tried again
        assert read_all(source) == table().to_pydict()
        kind.tag = "2"
        with pytest.raises(DataChangedError, match="changed"):
            source.read(0)
    with pytest.raises(SourceNotFoundError, match="none"):
        open_source(f"{address}/none.parquet")
    kind.ranges = False
    with pytest.raises(SourceError, match="range requests"):
        open_source(f"{address}/a.parquet")
