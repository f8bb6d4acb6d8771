"""Durable work in SQL: accept, claim, renew, finish, end, sweep. The only SQL of the project.

Public functions take a :class:`jobs.store.database.Database` and run short transactions of their own. Functions
that are part of a transaction take a :class:`jobs.store.database.Transaction`.

Every transaction takes its locks in one order, because two orders can deadlock: a batch, jobs by id, their chunks,
prefixes, flows, a tenant; a webhook's delivery, then its endpoint, and nothing after that.
:func:`jobs.queue.claims.claim.claim` is the exception. It takes only rows that are not locked, and so never waits.
"""
