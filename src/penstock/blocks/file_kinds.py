"""What a file is, as far as its first bytes show: kinds that Penstock does not read, and JSON.

Nearly any bytes can be read as CSV. A file that plainly is something else is refused by name instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from penstock.blocks.file_formats import FILE_FORMATS, format_of_head
from penstock.errors import SourceError
from penstock.messages import Convert, Text

STREAM_MARK = b"\xff\xff\xff\xff"
"""What every message of an Arrow stream begins with."""

_TABLES = "save it as Parquet or CSV"
# What a file begins with, what that is, and what to do.
_FOREIGN = {
    b"SQLite format 3\x00": ("a SQLite database", "export the table as CSV"),
    b"\x89HDF\r\n\x1a\n": ("an HDF5 file", _TABLES),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": ("an Excel workbook", _TABLES),
    b"Obj\x01": ("an Avro file", _TABLES),
    b"ORC": ("an ORC file", _TABLES),
    b"<stata_dta>": ("a Stata file", _TABLES),
    b"MATLAB 5.0 MAT-file": ("a MATLAB file", _TABLES),
    b"RDX": ("an R workspace", _TABLES),
    b"version https://git-lfs": ("a pointer of Git LFS, not the file itself", "fetch it: git lfs pull"),
    b"%PDF-": ("a PDF document", _TABLES),
    b"\x04\x22\x4d\x18": ("a file compressed with lz4", "decompress it, or compress it with gzip or zstd"),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", "unpack it"),
    b"Rar!\x1a\x07": ("a RAR archive", "unpack it"),
    b"\x89PNG\r\n": ("a PNG image", "convert a folder of images"),
    b"\xff\xd8\xff": ("a JPEG image", "convert a folder of images"),
    b"GIF8": ("a GIF image", "convert a folder of images"),
    b"\xff\xfe": ("text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
    b"\xfe\xff": ("text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
}
_MAGIC = {
    STREAM_MARK: "arrow",
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bz2",
    b"\xfd7zXZ": "xz",
}
"""What Arrow streams and compressed files begin with."""
_FEW = 4
"""Letters that a text may well begin with."""
COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
_MARKUP = re.compile(rb"\s*<(?:!doctype html|html|\?xml)\b", re.IGNORECASE)
_OBJECT = re.compile(rb'\s*\{\s*(?:"(?:[^"\\]|\\.)*"\s*:|\})')
_ARRAY = re.compile(rb"\s*\[\s*(?:[\[{]|$)")
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b"))
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def is_json_object(head: bytes) -> bool:
    """Whether text begins with a JSON object.

    Examples
    --------
    >>> is_json_object(b'{"a": 1}'), is_json_object(b"a,b")
    (True, False)
    """
    return _OBJECT.match(head.removeprefix(_BYTE_ORDER_MARK)) is not None


def kind_of_head(head: bytes) -> str | None:
    """Return the format, or the compression, of files that begin so; None for text and for what is not known."""
    magic = _first_magic(head, _MAGIC)
    if magic is not None:
        return _MAGIC[magic]
    found = format_of_head(head)
    few = found is not None and len(FILE_FORMATS[found].magic) <= _FEW and _is_text(head)
    return None if few else found


def compression_of_head(head: bytes) -> str | None:
    """Return how a file is compressed that is known not to be plain text, by its first bytes, however few; None where it is not.

    Examples
    --------
    >>> compression_of_head(b"BZh9"), compression_of_head(b"a,b")
    ('bz2', None)
    """
    packed = COMPRESSED.values()
    return next((kind for magic, kind in _MAGIC.items() if kind in packed and head.startswith(magic)), None)


def title_of(kind: str) -> str:
    """Return what messages call a file of a kind that `penstock.blocks.open.detect` tells.

    Examples
    --------
    >>> title_of("parquet"), title_of("jsonl"), title_of("gzip")
    ('a Parquet file', 'a file of JSON lines', 'a file compressed with gzip')
    """
    if kind in FILE_FORMATS:
        return FILE_FORMATS[kind].title
    return "a file of JSON lines" if kind == "jsonl" else f"a file compressed with {kind}"


def refuse_foreign(head: bytes, *, name: str) -> None:
    """Raise where the first bytes of a file are those of a kind that Penstock does not read.

    Examples
    --------
    >>> refuse_foreign(b"SQLite format 3\\x00...", name="shop.db")
    Traceback (most recent call last):
    penstock.errors.SourceError: shop.db looks like a SQLite database, which is not read; export the table as CSV
    """
    magic = _first_magic(head, _FOREIGN)
    found = _by_content(head) if magic is None else _FOREIGN[magic]
    if found is not None:
        what, remedy = found
        raise SourceError(f"{name} looks like {what}, which is not read; {remedy}")


def refuse_other_format(head: bytes, *, name: str) -> None:
    """Raise where the first bytes of a file that is to be CSV or LibSVM text are those of any other format.

    Examples
    --------
    >>> refuse_other_format(b"\\x1f\\x8b\\x08", name="clicks.csv")
    Traceback (most recent call last):
    penstock.errors.SourceError: clicks.csv is no plain text: it looks like a file compressed with gzip; add .gz to its
    name, and convert it: penstock convert clicks.csv.gz DST.arrow
    """
    refuse_foreign(head, name=name)
    kind = kind_of_head(head) or ("jsonl" if is_json_object(head) else None)
    if kind is None:
        return
    stream = head.startswith(STREAM_MARK)
    what = "JSON lines" if kind == "jsonl" else "an Arrow stream" if stream else title_of(kind)
    fix = Text(f"name it .{kind}")
    for suffix in (suffix for suffix, packed in COMPRESSED.items() if packed == kind):
        rename = "" if name.lower().endswith(suffix) else f"add {suffix} to its name, and "
        fix = Text(f"{rename}convert it: ", Convert(name.removesuffix(suffix) + suffix))
    raise SourceError(f"{name} is no plain text: it looks like {what}", fixes=[fix])


def _first_magic(head: bytes, kinds: Iterable[bytes]) -> bytes | None:
    """Return what a file begins with, of these; a few letters may be the first word of a text, such as a column ORCID."""
    return next((m for m in kinds if head.startswith(m) and (len(m) > _FEW or not _is_text(head))), None)


def _is_text(head: bytes) -> bool:
    return head.translate(None, _CONTROLS) == head


def _is_json_array(head: bytes) -> bool:
    if _ARRAY.match(head):
        return True
    try:
        return isinstance(json.loads(head.lstrip().split(b"\n", 1)[0]), list)
    except (ValueError, RecursionError):
        return False


def _by_content(head: bytes) -> tuple[str, str] | None:
    if head.startswith(b"PK\x03\x04"):
        if b"[Content_Types].xml" in head or b"xl/" in head:
            return "an Excel workbook", _TABLES
        if b"data.pkl" in head:
            return "a file that PyTorch saved", _TABLES
        return (
            ("a NumPy .npz archive", "save each array as .npy") if b".npy" in head else ("a zip archive", "unpack it")
        )
    if len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5:
        return "a Python pickle", "pickles are never loaded: save the data as Parquet where they were made"
    if int.from_bytes(head[:4], "little") > 0 and head[4:8] == bytes(4) and head[12:13] == b"\n":
        return (
            "a TFRecord file",
            "save its examples as Parquet, or as WebDataset tars",
        )  # a length, a checksum, an Example
    if head[257:262] == b"ustar":
        return "a tar archive", "name it .tar if it holds samples, or unpack it"
    if _MARKUP.match(head):
        return "a web page or XML", "was the download refused?"
    if head.lstrip()[:1] == b"[" and _is_json_array(head):
        return "a JSON array", "write one object per line: jq -c '.[]' FILE > FILE.jsonl"
    return None
