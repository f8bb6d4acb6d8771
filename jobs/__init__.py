"""Durable work in SQL: accept, claim, renew, finish, end, sweep. The only SQL of the project.

Public functions take a :class:`jobs.store.database.Database` and run short transactions of their own. Functions
that are part of a transaction take a :class:`jobs.store.database.Transaction`.

Every transaction takes its locks in one order, because two orders can deadlock: a batch, jobs by id, their chunks,
Idempotency-Keys, prefixes, flows, a tenant; a webhook's delivery, then its endpoint, and nothing after that.
:func:`jobs.queue.claims.claim.claim` takes only chunks and jobs that are not locked, and never waits for them. It waits
for the flows that it charges, in the order in which all transactions lock flows.
"""
