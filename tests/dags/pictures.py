"""Pictures for the documentation, small: a screenshot as a PNG of at most 256 colours."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path

import numpy as np

from tests.dags.browser import Page

_COLOURS = 256
_PIXELS = """(async () => {
    const image = new Image();
    image.src = 'data:image/png;base64,%s';
    await image.decode();
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [image.width, image.height];
    const context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    const bytes = context.getImageData(0, 0, image.width, image.height).data;
    let text = '';
    for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
    return btoa(text);
})()"""


def save_small(page: Page, png: str, size: tuple[int, int], path: Path) -> None:
    """Save a screenshot, given as base64, as a PNG with a palette. The tab shows an empty page afterwards."""
    page.open("about:blank")
    page.until(lambda: page.run("location.href") == "about:blank", "empty page")
    width, height = size
    raw = np.frombuffer(base64.b64decode(str(page.run(_PIXELS % png))), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(palette_png(raw.reshape(height, width, 4)[:, :, :3]))


def palette_png(pixels: np.ndarray) -> bytes:
    """Encode pixels (height, width, RGB): the most frequent colours, and of the others the nearest of these."""
    height, width, _ = pixels.shape
    found, index, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    palette = found[np.argsort(-counts)[:_COLOURS]].astype(np.int32)
    nearest = [int(((palette - colour) ** 2).sum(axis=1).argmin()) for colour in found.astype(np.int32)]
    rows = np.array(nearest, np.uint8)[index.reshape(height, width)]
    lines = np.hstack([np.zeros((height, 1), np.uint8), rows])  # each line begins with its filter: none
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    data = zlib.compress(lines.tobytes(), 9)
    chunks = ((b"IHDR", header), (b"PLTE", palette.astype(np.uint8).tobytes()), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in chunks)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
