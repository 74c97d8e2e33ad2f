"""Permutations and choices made from a key: computed, never stored. Pure.

A permutation of n things is a balanced Feistel network over the next even number of bits, walked
on until it lands below n; so both directions cost a few multiplications, whatever n is.

Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002 (cycle walking).
"""

import hashlib
from typing import NamedTuple

ROUNDS = 4
_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15


def key_of(*words: int | str) -> int:
    """Return 64 bits that follow from the words, the same on every machine."""
    text = "\0".join(map(str, words)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


class Permutation(NamedTuple):
    """An order of the numbers below `size`."""

    size: int
    key: int

    def at(self, place: int) -> int:
        """Return which number stands at a place."""
        assert 0 <= place < self.size
        half = _half_bits(self.size)
        while True:
            place = _forward(place, half, self.key)
            if place < self.size:
                return place

    def place(self, number: int) -> int:
        """Return the place of a number."""
        assert 0 <= number < self.size
        half = _half_bits(self.size)
        while True:
            number = _backward(number, half, self.key)
            if number < self.size:
                return number


def _half_bits(count: int) -> int:
    return max(1, (max(1, count - 1).bit_length() + 1) // 2)


def _forward(value: int, half: int, key: int) -> int:
    mask = (1 << half) - 1
    left, right = value >> half, value & mask
    for number in range(ROUNDS):
        left, right = right, left ^ (mixed(right, key, number) & mask)
    return left << half | right


def _backward(value: int, half: int, key: int) -> int:
    mask = (1 << half) - 1
    left, right = value >> half, value & mask
    for number in reversed(range(ROUNDS)):
        left, right = right ^ (mixed(left, key, number) & mask), left
    return left << half | right


def mixed(value: int, key: int, number: int) -> int:
    """Return well mixed bits of a value, one of many by its number.

    Source: the finalizer of MurmurHash3 (Appleby), with the key added.
    """
    bits = (value + key + (number + 1) * _ODD) & _MASK
    bits = ((bits ^ bits >> 33) * 0xFF51AFD7ED558CCD) & _MASK
    bits = ((bits ^ bits >> 33) * 0xC4CEB9FE1A85EC53) & _MASK
    return bits ^ bits >> 33
