"""SVG as text: what is escaped, how numbers are written, and where scales put values."""

import pytest

from fairtape.core import svg


def test_attributes_keep_their_order_and_get_their_svg_names() -> None:
    found = svg.element("rect", class_="c0", x=1, y=2.25, stroke_width=0.5)
    assert found == '<rect class="c0" x="1" y="2.2" stroke-width="0.5"/>'


def test_text_and_attribute_values_cannot_become_markup() -> None:
    assert svg.text(0, 1, "<b>&", fill='"') == '<text x="0" y="1" fill="&quot;">&lt;b&gt;&amp;</text>'
    assert svg.line(0, 1, 2, 3, tooltip="<i>") == '<line x1="0" y1="1" x2="2" y2="3"><title>&lt;i&gt;</title></line>'


def test_a_document_is_as_large_as_its_view_box() -> None:
    assert svg.document(30, 20, "", role="img") == (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 30 20" width="30" height="20" role="img"></svg>'
    )


def test_scales_map_their_ends_to_their_pixels() -> None:
    for scale in (svg.LinearScale(1, 100, 10, 210), svg.LogScale(1, 100, 10, 210)):
        assert (scale(1), scale(100)) == (10, 210)
    assert svg.LinearScale(0, 10, 100, 0)(2.5) == 75
    assert svg.LogScale(1, 100, 10, 210)(10) == pytest.approx(110)
    assert svg.LogScale(1, 100, 10, 210)(0) == 10


def test_ticks_are_round_and_decades_enclose_the_values() -> None:
    assert svg.ticks(0.0, 10.0, 5) == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert svg.ticks(3.0, 3.0, 5) == [3.0]
    assert svg.decades(7.0, 180.0) == [1.0, 10.0, 100.0, 1_000.0]
    assert svg.decades(10.0, 10.0) == [10.0, 100.0]
