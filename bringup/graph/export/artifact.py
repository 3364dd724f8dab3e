"""The file of an exported model: a header, a manifest in JSON, and weights as raw bytes. Nothing in it is code.

    0   magic, 8 bytes
    8   format version, 4 bytes; 4 bytes of zeros
    16  bytes of the manifest, 8 bytes
    24  bytes of the whole file, 8 bytes
    32  SHA-256 of the 32 bytes above and the manifest
    64  the manifest, then blobs at multiples of 64, zeros between

Numbers are little-endian. The manifest's ``blobs`` says where each blob lies and its SHA-256, so that every byte of
the file is under some checksum, and each blob is checked when it is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

MAGIC = b"\x89BUP\r\n\x1a\n"  # a transfer that rewrites line ends or drops the high bit shows at once
#: Of the layout above, of the manifest, and of what kernels' text means.
FORMAT = 1
ALIGNMENT = 64
_HEAD = struct.Struct("<8sIIQQ")
_START = _HEAD.size + hashlib.sha256().digest_size
#: The manifest of a network with 10,000 launches takes 5 MB.
MAX_MANIFEST = 1 << 28
MAX_BLOBS = 1 << 20
_FOREIGN = {
    b"PK\x03\x04": "a zip file, as torch.save and torch.export.save write it",
    b"\x80": "a pickle",
    b"\x7fELF": "a program",
    b"\x1f\x8b": "a gzip file",
}


class ArtifactError(ValueError):
    """A file that is not an artifact, or one that is damaged, of another version, or breaks a rule."""


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def write_artifact(path: str | os.PathLike[str], manifest: dict[str, Any], blobs: Sequence[Any]) -> None:
    """Writes a file at once: a reader sees all of it or what was there before."""
    views = [memoryview(blob).cast("B") for blob in blobs]
    digests = [hashlib.sha256(view).hexdigest() for view in views]
    # Where the first blob lies depends on the manifest's length, which names it: places count from the first blob.
    places: list[tuple[int, int, str]] = []
    position = 0
    for view, digest in zip(views, digests):
        places.append((position, len(view), digest))
        position = _aligned(position + len(view))
    text = json.dumps({**manifest, "blobs": places}, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > MAX_MANIFEST:
        raise ValueError(f"{path}: the manifest has {len(text)} bytes, {MAX_MANIFEST} are allowed")
    first = _aligned(_START + len(text))
    end = first + places[-1][0] + places[-1][1] if places else _START + len(text)
    head = _HEAD.pack(MAGIC, FORMAT, 0, len(text), end)
    with _replaced(Path(path)) as file:
        file.write(head + hashlib.sha256(head + text).digest() + text)
        for view, (place, _, _) in zip(views, places):
            file.write(bytes(first + place - file.tell()))
            file.write(view)


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of another when it is complete, and leaves nothing behind when it never is."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    with open(beside, "xb") as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(beside, path)
        except BaseException:
            os.unlink(beside)
            raise


class ArtifactFile:
    """An open artifact whose manifest is checked; blobs are checked as they are read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._file: BinaryIO = open(path, "rb")  # noqa: SIM115
        try:
            self.manifest = self._read_manifest()
            self._blobs = self._checked_places(self.manifest.pop("blobs", None))
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> ArtifactFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def fail(self, what: str) -> ArtifactError:
        """The error that names this file."""
        return ArtifactError(f"{self.path}: {what}")

    def _read_manifest(self) -> dict[str, Any]:
        size = os.fstat(self._file.fileno()).st_size
        head = self._file.read(_START)
        if head[: len(MAGIC)] != MAGIC:
            kind = next((f" but {kind}" for start, kind in _FOREIGN.items() if head.startswith(start)), "")
            raise self.fail(f"this is not a model that bringup.export wrote{kind or ' (its first bytes are others)'}")
        if len(head) < _START:
            raise self.fail(f"the file is cut short: {size} bytes")
        _, version, reserved, length, end = _HEAD.unpack_from(head)
        if version != FORMAT:
            raise self.fail(f"format {version}, and this bringup reads format {FORMAT}: export the model again")
        if size != end:
            raise self.fail(f"the file is {'cut short' if size < end else 'too long'}: {size} bytes, it says {end}")
        if reserved or length > min(MAX_MANIFEST, end - _START):
            raise self.fail("the header is damaged")
        text = self._file.read(length)
        if hashlib.sha256(head[: _HEAD.size] + text).digest() != head[_HEAD.size :]:
            raise self.fail("the file is damaged: the checksum of its manifest is another")
        self._first = _aligned(_START + length)
        self._end = end
        self._gap(_START + length, min(self._first, end))
        try:
            manifest = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.fail(f"the manifest is not JSON: {error}") from error
        if type(manifest) is not dict:
            raise self.fail("the manifest is not a JSON object")
        return manifest

    def _gap(self, start: int, stop: int) -> None:
        self._file.seek(start)
        if self._file.read(stop - start).strip(b"\0"):
            raise self.fail("the file is damaged: there is something between its parts")

    def _checked_places(self, blobs: Any) -> list[tuple[int, int, str]]:
        """Blobs lie one after the other and end where the file ends."""
        if type(blobs) is not list or len(blobs) > MAX_BLOBS:
            raise self.fail("the list of blobs is damaged")
        places, position = [], 0
        end = self._first - 1
        for entry in blobs:
            good = type(entry) is list and len(entry) == 3 and all(type(n) is int for n in entry[:2])
            if not good or type(entry[2]) is not str or entry[0] != position or not 0 <= entry[1] <= self._end:
                raise self.fail("the list of blobs is damaged")
            start, end = self._first + position, self._first + position + entry[1]
            if end > self._end:
                raise self.fail("the list of blobs is damaged")
            places.append((start, entry[1], entry[2]))
            position = _aligned(position + entry[1])
        if blobs and end != self._end:
            raise self.fail("the list of blobs does not end where the file ends")
        for start, nbytes, _ in places[:-1]:
            self._gap(start + nbytes, _aligned(start + nbytes))
        return places

    @property
    def blob_bytes(self) -> list[int]:
        """How long each blob is."""
        return [nbytes for _, nbytes, _ in self._blobs]

    def blob(self, number: int) -> bytearray:
        """The bytes of a blob, checked."""
        start, nbytes, digest = self._blobs[number]
        data = bytearray(nbytes)
        self._file.seek(start)
        read = self._file.readinto(data)  # type: ignore[attr-defined]
        if read != nbytes or hashlib.sha256(data).hexdigest() != digest:
            raise self.fail(f"the file is damaged: the checksum of blob {number} is another")
        return data
