"""CRC32C as TFRecord files have it: masked; of lengths in numpy, of data by a C library.

Source: the polynomial, RFC 3720 appendix B.4; masking, TensorFlow's record_writer.
"""

from functools import cache

import google_crc32c
import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
POLYNOMIAL = 0x82F63B78
MASK_DELTA = 0xA282EAD8


def masked(crc: Words) -> Words:
    """Return CRCs as TFRecord files store them."""
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(MASK_DELTA)


def crc_of_eight(codes: NDArray[np.uint8], begins: NDArray[np.int64]) -> Words:
    """Return the CRC32C of the eight bytes at each place."""
    table = _byte_table()
    crc = np.full(len(begins), 0xFFFFFFFF, np.uint32)
    for step in range(8):
        crc = table[(crc ^ codes[begins + step]) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return ~crc


def crc_of_ranges(data: bytes, begins: NDArray[np.int64], stops: NDArray[np.int64]) -> Words:
    """Return the CRC32C of each range of bytes."""
    value = google_crc32c.value
    pairs = zip(begins.tolist(), stops.tolist(), strict=True)
    return np.fromiter((value(data[lo:hi]) for lo, hi in pairs), np.uint32, len(begins))


@cache
def _byte_table() -> Words:
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> 1) ^ np.uint32(POLYNOMIAL), crc >> 1).astype(np.uint32)
    return crc
