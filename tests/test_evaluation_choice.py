"""Which tasks an evaluation plays, and with which luck."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multiors.evaluation.running.choice import choose_tasks, make_seed

indices = st.lists(st.integers(0, 10**6), max_size=60)
seeds = st.integers(0, 2**64)
names = st.text(max_size=8)


@given(indices, st.integers(1, 70), st.integers(1, 70), seeds, names)
def test_a_larger_choice_holds_the_smaller(
    given_indices: list[int], one: int, other: int, seed: int, source: str
) -> None:
    """Who asks for more tasks plays those of the smaller evaluation again, and further ones."""
    smaller, larger = (choose_tasks(given_indices, number, seed=seed, source=source) for number in sorted((one, other)))

    assert set(smaller) <= set(larger)
    assert set(larger) <= set(choose_tasks(given_indices, None, seed=seed, source=source))


@given(indices, st.integers(1, 70), seeds, names)
def test_as_many_tasks_as_asked_for_each_once(given_indices: list[int], number: int, seed: int, source: str) -> None:
    """Never more than there are, and none twice."""
    chosen = choose_tasks(given_indices, number, seed=seed, source=source)

    assert min(number, len(set(given_indices))) == len(chosen) == len(set(chosen))


@given(st.data(), indices, st.integers(1, 70), seeds)
def test_the_order_of_a_task_list_changes_no_choice(
    data: st.DataObject, given_indices: list[int], number: int, seed: int
) -> None:
    """A server may list its tasks in another order."""
    shuffled = data.draw(st.permutations(given_indices))
    chosen, again = (choose_tasks(each, number, seed=seed, source="a") for each in (given_indices, shuffled))

    assert set(chosen) == set(again)


@given(indices, st.integers(1, 70), seeds, st.sets(st.integers(0, 10**6)))
def test_a_task_that_is_added_displaces_at_most_one(
    given_indices: list[int], number: int, seed: int, added: set[int]
) -> None:
    """Each task has its place by itself, so a longer list changes the choice only by what is new in it."""
    before = set(choose_tasks(given_indices, number, seed=seed, source="a"))
    after = set(choose_tasks([*given_indices, *added], number, seed=seed, source="a"))

    assert after - before <= added


@given(seeds, names, st.integers(0, 10**6), st.integers(0, 100))
def test_a_seed_fits_into_63_bits_and_is_the_same_each_time(
    seed: int, source: str, task_index: int, episode: int
) -> None:
    """Seeds are non-negative and fit into a signed integer of 64 bits, as torch and Arrow take them."""
    found = make_seed(seed, source, task_index, episode)

    assert 0 <= found < 2**63
    assert found == make_seed(seed, source, task_index, episode)


def test_every_episode_has_a_seed_of_its_own() -> None:
    """Another evaluation, source, task or episode has other luck."""
    found = {
        make_seed(seed, source, task, episode)
        for seed in range(3)
        for source in ("a", "b")
        for task in range(50)
        for episode in range(10)
    }

    assert 3 * 2 * 50 * 10 == len(found)


def test_choices_and_seeds_are_those_of_earlier_versions() -> None:
    """They may never change: evaluations of two versions would not be paired any more."""
    assert (5, 7, 1, 4) == choose_tasks(range(10), 4, seed=1, source="sort")
    assert 1291803754638305160 == make_seed(0, "sort", 5, 0)
