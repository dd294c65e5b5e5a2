"""How contenders are timed."""

from functools import partial

from oaxe.support.timing import take_turns


def test_every_round_has_all_contenders_in_an_order_of_its_own() -> None:
    ran: list[str] = []
    found = list(
        take_turns(
            {name: partial(ran.append, name) for name in "abcd"},
            repeats=20,
            clock=lambda run: float(run() is None),
        )
    )
    assert [name for name, _ in found] == ran[4:]
    assert all(seconds == 1.0 for _, seconds in found)
    rounds = ["".join(ran[i : i + 4]) for i in range(0, len(ran), 4)]
    assert rounds[0] == "abcd"  # warms up
    assert {*map("".join, map(sorted, rounds))} == {"abcd"}
    assert len({*rounds[1:]}) > 10
    before = {order[order.index("b") - 1] for order in rounds[1:] if order.index("b")}
    assert before == {*"acd"}
