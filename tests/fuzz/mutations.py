"""Mutants of valid inputs: what a bad disk, a crash or a hostile peer makes of them. Seeded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from tests.fuzz.corpus import Specimen

_EXTREMES = (
    0,
    1,
    7,
    8,
    63,
    64,
    65,
    255,
    256,
    1 << 15,
    (1 << 16) - 1,
    1 << 16,
    1 << 20,
    1 << 28,
    (1 << 31) - 1,
    1 << 31,
)
_TOPS = (0, 1, 2, 8, 64)


class Mutator:
    """Mutants of a few specimens of one kind; pieces of any go into any."""

    def __init__(self, specimens: Sequence[Specimen]) -> None:
        self._specimens = specimens
        self._changes: tuple[Callable[[Random, Specimen, bytearray], None], ...] = (
            self._flip_bits,
            self._flip_bits,
            self._set_length,
            self._set_length,
            self._set_byte,
            self._cut,
            self._splice,
            self._drop_piece,
            self._zero_piece,
        )

    def mutant(self, random: Random) -> bytes:
        """One to three changes; every other mutant gets checksums that hold."""
        specimen = random.choice(self._specimens)
        content = bytearray(specimen.content)
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            random.choice(self._changes)(random, specimen, content)
        if random.random() < 0.5:
            specimen.mend(content)
        return bytes(content)

    def _flip_bits(self, random: Random, specimen: Specimen, content: bytearray) -> None:
        for _ in range(random.choice((1, 1, 2, 8)) if content else 0):
            content[random.randrange(len(content))] ^= 1 << random.randrange(8)

    def _set_byte(self, random: Random, specimen: Specimen, content: bytearray) -> None:
        if content:
            content[random.randrange(len(content))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))

    def _set_length(self, random: Random, specimen: Specimen, content: bytearray) -> None:
        """A length, count or offset takes an extreme value, or one near to what it was, or near to the size of all."""
        at, size = random.choice(specimen.lengths)
        if at + size > len(content):
            return
        top = 1 << 8 * size
        old = int.from_bytes(content[at : at + size], "little")
        near = old + random.choice((-8, -2, -1, 1, 2, 8))
        value = random.choice((random.choice(_EXTREMES), top - 1 - random.choice(_TOPS), near, len(content) - at))
        content[at : at + size] = (value % top).to_bytes(size, "little")

    def _cut(self, random: Random, specimen: Specimen, content: bytearray) -> None:
        del content[random.randrange(len(content) + 1) :]

    def _splice(self, random: Random, specimen: Specimen, content: bytearray) -> None:
        """A valid piece in a wrong place, over what was there or between it."""
        source = random.choice(self._specimens).content
        start = random.randrange(len(source))
        piece = source[start : start + random.choice((4, 8, 64, 200, 1000))]
        at = random.randrange(len(content) + 1)
        content[at : at + (len(piece) if random.random() < 0.7 else 0)] = piece

    def _drop_piece(self, random: Random, specimen: Specimen, content: bytearray) -> None:
        at = random.randrange(len(content) + 1)
        del content[at : at + random.choice((1, 4, 8, 64, 512))]

    def _zero_piece(self, random: Random, specimen: Specimen, content: bytearray) -> None:
        at = random.randrange(len(content) + 1)
        end = min(len(content), at + random.choice((4, 8, 64, 512)))
        content[at:end] = bytes(end - at)
