"""Which formation store the sites follow: that of this server, one that it replaces, or another one.

Decision 63, One store. What a store decides is one history only within that store. Two stores for one deployment, such
as those of two copies of its folder, give two histories of the same numbers. So a site follows one store, and names it
in its reports. A leader whose store is another one leaves that site alone. It cannot know whether the other store is
lost or has a leader of its own: only the operator does. A store that the operator has declared lost is named in the
formations that follow, so later leaders know it.
"""

from fairtape.ring.membership.formation import STORES_MAX, Formation
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import SiteReport


class FollowedStores:
    """The identities of stores, as one reformation server knows them."""

    def __init__(self) -> None:
        self.own = 0  # of the store of this server; 0: not known yet
        self.others: dict[NodeId, int] = {}  # the sites that follow a store that this one does not replace
        self._followers: set[NodeId] = set()  # the sites that follow this one
        self._replaced: tuple[int, ...] = ()  # by the recorded formation, the latest one first
        self._declared_lost: tuple[int, ...] = ()  # by the operator, and not recorded yet

    @property
    def identities(self) -> tuple[int, ...]:
        """What a formation names: this store, and those that it replaced."""
        if not self.own:
            return ()
        return tuple(dict.fromkeys((self.own, *self._declared_lost, *self._replaced)))[:STORES_MAX]

    @property
    def adopts(self) -> bool:
        """Whether the operator has declared a store lost, and no formation says so yet."""
        return bool(self._declared_lost)

    def lead(self, own: int, recorded: Formation | None) -> None:
        """This server begins to lead, with what its store has recorded."""
        self.own = own
        self.others.clear()
        self._followers.clear()
        self._replaced = () if recorded is None else tuple(each for each in recorded.stores if each != own)
        self._declared_lost = tuple(each for each in self._declared_lost if each != own)

    def recorded(self, formation: Formation) -> None:
        """The store has recorded a formation, and with it what it replaces."""
        self._replaced = tuple(each for each in formation.stores if each != self.own)
        self._declared_lost = tuple(each for each in self._declared_lost if each not in self._replaced)

    def obeys(self, report: SiteReport) -> bool:
        """Whether a site follows this store, or one that it replaces, or none yet."""
        if report.store and report.store not in self.identities:
            self.others[report.sender] = report.store
            self._followers.discard(report.sender)
            return False
        self.others.pop(report.sender, None)
        if report.store == self.own:
            self._followers.add(report.sender)
        return True

    def is_declared_lost(self, store: int) -> bool:
        """Whether a site follows a store that was declared lost, and must be stopped first."""
        return store in self._declared_lost

    def adopt(self) -> str | None:
        """The operator declares the stores lost that sites follow. Returns a notice, if there are any.

        Not while other sites follow this store: then both stores have a history, and one of them has to be given up.
        """
        if not self.others:
            return None
        if self._followers:
            return (
                f"sites {tuple(sorted(self.others))} follow another store, and {tuple(sorted(self._followers))} this"
                " one: nothing is adopted; empty the journals of those that are to be given up, and restart them"
            )
        lost = dict.fromkeys(self.others.values())
        self._declared_lost = tuple(dict.fromkeys((*lost, *self._declared_lost)))
        sites = tuple(sorted(self.others))
        self.others.clear()
        return f"the store that sites {sites} follow is declared lost: this one replaces it"
