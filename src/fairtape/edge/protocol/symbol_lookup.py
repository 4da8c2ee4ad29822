"""Many names found at once: the listing of every trade record of a token, without a step per record.

A name is the 28 bytes that venue and symbol have in a record. Seen as four integers it is hashed by four
multiplications; the few names that share a slot with another one are found one by one.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

NAME_SIZE: Final = 28
_SPREAD: Final = 8  # slots per name: then some six of a hundred names share a slot
_BITS_MIN: Final = 8
_FACTORS: Final = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64
)  # odd, with bits of no pattern
_HALF: Final = np.uint64(32)


class SymbolLookup:
    """Numbers names from 1 on."""

    def __init__(self, names: Sequence[bytes]) -> None:
        bits = max((len(names) * _SPREAD).bit_length(), _BITS_MIN)
        self._shift = np.uint64(64 - bits)
        self._slots = np.zeros(1 << bits, np.int64)
        self._keys = np.zeros((len(names) + 1, 4), np.uint64)
        self._keys[0] = ~np.uint64(0)  # no name has these bytes
        for number, name in enumerate(names, 1):
            self._keys[number] = np.frombuffer(bytes(4) + name, "<u8")
        self._keys[:, 0] >>= _HALF
        slots = self._slots_of(self._keys)
        self._crowded: dict[bytes, int] = {}
        for number, name in enumerate(names, 1):
            if self._slots[slots[number]]:
                self._crowded[name] = number
            else:
                self._slots[slots[number]] = number

    def find(self, words: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """The number of the name in each record, seen as rows of 64-bit words; 0 where it is unknown."""
        keys = words[:, :4].astype(np.uint64)
        keys[:, 0] >>= _HALF
        found: npt.NDArray[np.int64] = self._slots[self._slots_of(keys)]
        wrong = np.flatnonzero((self._keys[found] != keys).any(axis=1))
        if len(wrong):
            found[wrong] = 0
            for place in wrong.tolist() if self._crowded else ():
                found[place] = self._crowded.get(words[place].tobytes()[4 : 4 + NAME_SIZE], 0)
        return found

    def _slots_of(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        mixed: npt.NDArray[np.uint64] = (keys * _FACTORS).sum(axis=1, dtype=np.uint64)
        return (mixed >> self._shift).astype(np.int64)
