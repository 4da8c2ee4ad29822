"""Strategies for messages of ITCH 5.0, derived from the same description as the codec."""

from typing import Any

from hypothesis import strategies as st

from fairtape.formats.fixed_layout import FieldKind, Number
from fairtape.formats.itch import messages as itch
from fairtape.formats.itch.messages import LAYOUTS, MESSAGES

INK = st.characters(min_codepoint=0x20, max_codepoint=0x7E)


def values(kind: FieldKind) -> st.SearchStrategy[Any]:
    if isinstance(kind, Number):
        return st.integers(0, kind.most) | st.sampled_from([0, 1, kind.most])
    return st.text(INK, max_size=kind.width).map(lambda text: text.rstrip(" "))


def messages(*types: type[itch.ItchMessage]) -> st.SearchStrategy[itch.ItchMessage]:
    return st.one_of(
        [st.builds(each, *(values(f.kind) for f in LAYOUTS[each.LETTER].fields)) for each in types or MESSAGES]
    )


def mutated(whole: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Valid bytes with some changed, removed or added."""

    @st.composite
    def strategy(draw: st.DrawFn) -> bytes:
        octets = bytearray(draw(whole))
        for _ in range(draw(st.integers(0, 3))):
            if octets:
                octets[draw(st.integers(0, len(octets) - 1))] = draw(st.integers(0, 255))
        cut = draw(st.integers(0, len(octets)))
        return bytes(octets[:cut] if draw(st.booleans()) else octets) + draw(st.binary(max_size=3))

    return strategy()
