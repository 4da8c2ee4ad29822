"""Plans as files: found by version and by mark, and never replaced silently."""

from pathlib import Path

import pytest

from fairtape.core.errors import UserError
from fairtape.deployment.config.description import FILE, Deployment, read_deployment
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.edge.service.stripe_plans import PlanUnknown, StripePlanStore, mark_in, mark_of, read_plan, version_of
from fairtape.market.stripe_files import to_toml
from unit.edge.edge_journals import plan_store
from unit.edge.edge_values import formation_change, plan


def test_a_mark_names_the_version_and_distinguishes_plans_of_one_version() -> None:
    assert version_of(mark_of(plan(7))) == 7
    assert mark_of(plan(7)) != mark_of(plan(7, stripes=3))
    assert mark_in(formation_change(1, 1)) == 0  # a layout that cannot be decoded names none


def test_what_was_added_is_found_again_and_prepared_ahead(tmp_path: Path) -> None:
    plans = plan_store(tmp_path, plan(1), plan(2), plan(3))
    assert plans.versions() == [1, 2, 3]
    assert plans.prepared(mark_of(plan(2))) is None
    plans.prepare(1)
    found = plans.prepared(mark_of(plan(2)))
    assert found is not None
    assert found[0] == plan(2)
    assert plans.prepared(mark_of(plan(2, stripes=3))) is None
    assert sorted(map(version_of, plans.marks)) == [2, 3]


def test_a_version_is_given_once(tmp_path: Path) -> None:
    plans = plan_store(tmp_path, plan(1))
    assert plans.add(plan(1)) == plans.path(1)
    with pytest.raises(
        UserError, match=r"version is 1, and .*00001\.toml is another plan; give yours a higher version"
    ):
        plans.add(plan(1, stripes=3))


def test_a_file_that_is_no_plan_or_another_one_is_refused(tmp_path: Path) -> None:
    plans = plan_store(tmp_path, plan(1))
    plans.path(2).write_text("nonsense = [")
    plans.path(3).write_text(to_toml(plan(1)))
    plans.path(4).write_bytes(b"\xff\xfe")
    plans.prepare(0)
    assert list(map(version_of, plans.marks)) == [1]
    reasons = ((2, "is not valid TOML"), (3, "version is 1; expected 3"), (4, "holds no text"), (5, "is not here"))
    for version, why in reasons:
        with pytest.raises(PlanUnknown, match=why):
            plans.by_version(version)
    with pytest.raises(PlanUnknown, match="has no core stripe 5"):
        StripePlanStore(tmp_path, 5).by_version(1)
    with pytest.raises(UserError, match="cannot be read"):
        read_plan(tmp_path / "nowhere.toml")


def edged(folder: Path) -> Deployment:
    return create_deployment(folder, Draft(loops=(3,), profile="metro", edge=2))


def test_init_writes_an_edge_that_is_read_back(tmp_path: Path) -> None:
    deployment = edged(tmp_path / "new")
    assert deployment.edge is not None
    assert {name: place.feed for name, place in deployment.edge.publishers.items()} == {"s1": "A", "s2": "B", "s3": "A"}
    places = [place for each in deployment.edge.publishers.values() for place in (each.requests, each.replays)]
    assert len(set(places)) == 6
    assert (deployment.edge.tag, deployment.edge.first_plan, deployment.edge.ttl) == ("FT", 1, 0)
    first = read_plan(tmp_path / "new" / "plans" / "00001.toml")
    assert (first.version, first.feeds, len(first.edge)) == (1, ("A", "B"), 3)


def test_the_former_name_of_the_publishers_is_still_read(tmp_path: Path) -> None:
    deployment = edged(tmp_path / "new")
    path = tmp_path / "new" / FILE
    path.write_text(path.read_text().replace("[edge.publishers]", "[edge.stations]"))
    assert read_deployment(tmp_path / "new").edge == deployment.edge
    path.write_text(f'{path.read_text()}\n[edge.publishers]\ns1 = {{ feed = "A" }}\n')
    with pytest.raises(UserError, match=r"edge\.publishers"):
        read_deployment(tmp_path / "new")


def test_without_the_section_there_is_no_edge(tmp_path: Path) -> None:
    assert create_deployment(tmp_path / "new", Draft(loops=(3,), profile="metro")).edge is None


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ('tag = "FT"', 'tag = "FAIR"', "edge.tag is 'FAIR'; expected 1 or 2 letters and digits"),
        ("first_plan = 1", "first_plan = -1", "edge.first_plan is -1; expected from 0 to"),
        ('feed = "A"', 'feed = "a feed"', "edge.publishers.s1.feed is 'a feed'; expected the name of a feed"),
        ('s2 = { feed = "B"', 's9 = { feed = "B"', "edge.publishers.s9 is 's9'; expected one of the sites s1, s2, s3"),
        ('tag = "FT"', 'tag = "FT"\nspeed = 3', "edge.speed is 3; no such field is known"),
        ("guaranteed = []", "guaranteed = [3]", "edge.guaranteed has 3 in it; expected a list of names"),
    ],
)
def test_a_mistake_in_the_section_is_one_sentence(tmp_path: Path, before: str, after: str, complaint: str) -> None:
    edged(tmp_path / "new")
    path = tmp_path / "new" / FILE
    path.write_text(path.read_text().replace(before, after, 1))
    with pytest.raises(UserError) as raised:
        read_deployment(tmp_path / "new")
    assert complaint in str(raised.value)
