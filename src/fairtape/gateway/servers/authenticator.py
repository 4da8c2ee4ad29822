"""Checks passwords and tokens without blocking the event loop.

Checking a password is slow on purpose, so it runs in a few threads. Attempts are rate-limited per name, and the number
of concurrent checks is limited.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.core.token_bucket import TokenBucket
from fairtape.gateway.storage.accounts import TradingAccounts

THREADS: Final = 2
CHECKS_MAX: Final = 64  # concurrent
ATTEMPTS_PER_S: Final = 1  # per name, in the long run
ATTEMPTS_PERIOD: Final[Duration] = 20 * SECOND  # worth of attempts may come at once
NAMES_MAX: Final = 10_000  # names whose attempts are counted
VERDICTS_MAX: Final = 1_024

WRONG: Final = "wrong user name or password"
BUSY: Final = "too many concurrent logins; try again"
TOO_OFTEN: Final = "too many attempts; try again later"


class LoginAuthenticator:
    """Checks the logins of all servers of a gateway."""

    def __init__(self, accounts: TradingAccounts, *, now: Callable[[], Instant]) -> None:
        self._accounts = accounts
        self._now = now
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="authenticator")
        self._checks = 0
        self._attempts: dict[str, TokenBucket] = {}
        self._verdicts: dict[tuple[str, str, str], str | None] = {}

    async def refusal(self, name: str, secret: str) -> str | None:
        """Return why a login is refused; None if it is accepted."""
        if self._checks >= CHECKS_MAX:
            return BUSY
        if name not in self._attempts and len(self._attempts) >= NAMES_MAX:
            self._attempts.clear()
        if not self._attempts.setdefault(name, TokenBucket(ATTEMPTS_PER_S, ATTEMPTS_PERIOD)).take(1, self._now()):
            return TOO_OFTEN
        self._checks += 1
        try:
            correct = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._accounts.verify, name, secret
            )
        finally:
            self._checks -= 1
        return None if correct else WRONG

    # A FIX session asks synchronously, within a message. So its logon is checked beforehand and the result is kept.

    async def check_logon(self, client: str, name: str, secret: str) -> None:
        """Check a FIX logon before its session sees it. The user name must be empty or the CompID of the client."""
        verdict = await self.refusal(name or client, secret) if name in ("", client) else WRONG
        if len(self._verdicts) >= VERDICTS_MAX:
            self._verdicts.clear()
        self._verdicts[client, name, secret] = verdict

    def logon_refusal(self, client: str, name: str, secret: str) -> str | None:
        """The result of `check_logon`; each result is used once."""
        return self._verdicts.pop((client, name, secret), WRONG)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
