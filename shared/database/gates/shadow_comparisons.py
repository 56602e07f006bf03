"""Comparisons of shadow adapters with answering ones: counts of judged copies, by tenant, alias, adapters, eval."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from pydantic import Field
from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite

from shared.database.connection import Database
from shared.database.records import Value
from shared.database.tables.gates import ShadowComparisonRow
from shared.database.tables.storable import storable
from shared.database.tenancy import SHARED, TenantName


class ShadowPair(Value):
    """Two adapters whose answers to the same requests are compared, and the eval that judges them."""

    alias: str
    incumbent_id: str
    candidate_id: str
    eval_id: str


class PairCounts(Value):
    """Outcomes of copied requests: how often only one of the two adapters' answers passed every criterion."""

    wins: int = Field(0, ge=0, description="The candidate's answer passed, and the incumbent's did not.")
    losses: int = Field(0, ge=0, description="The incumbent's answer passed, and the candidate's did not.")
    ties: int = Field(0, ge=0)
    errored: int = Field(0, ge=0, description="Copies that were not answered or could not be judged.")
    last_error: str | None = Field(None, description="Code of the last error.")

    def plus(self, other: PairCounts) -> PairCounts:
        """Return the sum of both."""
        return PairCounts(
            wins=self.wins + other.wins,
            losses=self.losses + other.losses,
            ties=self.ties + other.ties,
            errored=self.errored + other.errored,
            last_error=other.last_error or self.last_error,
        )


class ShadowComparison(ShadowPair, PairCounts):
    """A comparison's current state."""

    tenant: str
    first_at: datetime
    last_at: datetime
    worse_at: datetime | None = Field(description="When the candidate was shown to be worse; copying stopped then.")


class ShadowComparisons:
    """Comparisons of a tenant's own requests: other tenants do not see them, even on a shared alias."""

    def __init__(self, database: Database, tenant: TenantName = SHARED) -> None:
        self._db = database
        self._tenant = tenant

    def add(self, pair: ShadowPair, counts: PairCounts, is_worse: Callable[[int, int], bool]) -> ShadowComparison:
        """Add counts to a comparison and evaluate it, in one transaction. Once a comparison has shown a loss, its
        counts no longer change.

        Args:
            is_worse: whether this many losses and wins show that the candidate is worse.
        """
        insert = sqlite.insert if self._db.is_sqlite else postgresql.insert
        key = {"tenant": self._tenant, **pair.model_dump()}
        with self._db.write() as session:
            now = self._db.now(session)
            new = key | PairCounts().model_dump() | {"first_at": now, "last_at": now}
            # Inserted first, because a row that does not exist cannot be locked.
            session.execute(insert(ShadowComparisonRow).values(new).on_conflict_do_nothing())
            row = session.get_one(
                ShadowComparisonRow, tuple(key.values()), with_for_update=True, populate_existing=True
            )
            if row.worse_at is None:
                for name, value in PairCounts.model_validate(row).plus(counts).model_dump().items():
                    setattr(row, name, value)
                row.last_at = now
                row.worse_at = now if is_worse(row.losses, row.wins) else None
            session.flush()
            return ShadowComparison.model_validate(row)

    def of_alias(self, alias: str) -> list[ShadowComparison]:
        """Return an alias's comparisons, the latest first."""
        query = select(ShadowComparisonRow).where(
            ShadowComparisonRow.tenant == self._tenant, ShadowComparisonRow.alias == storable(alias)
        )
        with self._db.read() as session:
            rows = session.scalars(query.order_by(ShadowComparisonRow.last_at.desc()))
            return [ShadowComparison.model_validate(row) for row in rows]

    def find(self, pair: ShadowPair) -> ShadowComparison | None:
        """Return a comparison; None if no copy was judged."""
        with self._db.read() as session:
            row = session.get(ShadowComparisonRow, (self._tenant, *pair.model_dump().values()))
            return ShadowComparison.model_validate(row) if row else None
