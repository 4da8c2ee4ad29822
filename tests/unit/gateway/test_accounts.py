"""Logins, their secrets, and the brokers who vouch for customers."""

from pathlib import Path

import pytest

from fairtape.core.errors import UserError
from fairtape.gateway.storage.accounts import TradingAccounts, hashed

SECRET = "secret-of-the-tests"  # noqa: S105 - protects nothing


def test_passwords_and_tokens_are_accepted_and_nothing_else_is(tmp_path: Path) -> None:
    accounts = TradingAccounts(tmp_path / "accounts.sqlite")
    accounts.add("ann", SECRET)
    token = accounts.issue_token("ann")
    assert accounts.verify("ann", SECRET)
    assert accounts.verify("ann", token)
    for name, wrong in (("ann", "guess"), ("eve", SECRET), ("ann", ""), ("ann", "x" * 1_000), ("eve", token)):
        assert not accounts.verify(name, wrong)
    assert not accounts.verify("ann", "ft_guess")
    newer = accounts.issue_token("ann")
    assert accounts.verify("ann", newer)
    assert not accounts.verify("ann", token)
    accounts.close_login("ann")
    assert not accounts.verify("ann", SECRET)
    assert not accounts.verify("ann", newer)
    kept = (tmp_path / "accounts.sqlite").read_bytes() + (tmp_path / "accounts.sqlite-wal").read_bytes()
    for secret in (SECRET, token, newer):
        assert secret.encode() not in kept


def test_a_broker_acts_for_its_own_customers_only(tmp_path: Path) -> None:
    accounts = TradingAccounts(tmp_path / "accounts.sqlite")
    accounts.add("broker", SECRET)
    accounts.add("ann", SECRET, broker="broker")
    accounts.add("bob", SECRET)
    assert accounts.scope("broker") == {"broker", "ann"}
    assert accounts.acts_for("broker", "ann")
    assert accounts.acts_for("ann", "ann")
    assert not accounts.acts_for("broker", "bob")
    assert not accounts.acts_for("ann", "broker")
    assert not accounts.acts_for("eve", "eve")
    with pytest.raises(UserError, match="who is a customer of another"):
        accounts.add("cyd", SECRET, broker="ann")
    with pytest.raises(UserError, match="there is no such login: add it first"):
        accounts.add("cyd", SECRET, broker="eve")


def test_what_another_process_changes_is_noticed(tmp_path: Path) -> None:
    first, second = (TradingAccounts(tmp_path / "accounts.sqlite") for _ in range(2))
    first.add("ann", SECRET)
    assert second.verify("ann", SECRET)
    first.close_login("ann")
    second.refresh()
    assert not second.knows("ann")
    assert [login.name for login in second.logins()] == ["ann"]


@pytest.mark.parametrize(
    ("name", "password", "said"),
    [
        ("", SECRET, "account is ''"),
        ("a b", SECRET, "without blanks"),
        ("n" * 17, SECRET, "1 to 16"),
        ("ann", "short", "the password has 5 characters"),
        ("ann", "ft_" + SECRET, "not begin with ft_"),
        ("bob", SECRET, "which exists already"),
    ],
)
def test_an_invalid_login_is_refused_in_one_sentence(tmp_path: Path, name: str, password: str, said: str) -> None:
    accounts = TradingAccounts(tmp_path / "accounts.sqlite")
    accounts.add("bob", SECRET)
    with pytest.raises(UserError, match=said):
        accounts.add(name, password)
    with pytest.raises(UserError, match="there is no such login"):
        accounts.issue_token("eve")


def test_equal_passwords_are_kept_differently() -> None:
    assert hashed(SECRET) != hashed(SECRET)


def test_a_lone_surrogate_is_no_password_and_no_fault(tmp_path: Path) -> None:
    accounts = TradingAccounts(tmp_path / "accounts.sqlite")
    accounts.add("ann", "correct horse battery")
    assert not accounts.verify("ann", "\ud800")
    with pytest.raises(UserError, match="not valid Unicode text"):
        accounts.add("bob", "correct horse \ud800")
