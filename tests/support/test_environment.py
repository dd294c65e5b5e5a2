"""The environment that is stored with results."""

import pytest

from oaxe.support.environment import environment


def test_commit_of_a_copy_without_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAXE_COMMIT", "abc1234")
    assert environment()["commit"] == "abc1234"
    monkeypatch.delenv("OAXE_COMMIT")
    assert environment()["commit"] != "abc1234"
