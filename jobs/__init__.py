"""Durable work in SQL: accept, claim, renew, finish, end, sweep. The only SQL of the project.

Every function takes a :class:`jobs.store.database.Database` and runs short transactions of its own.

One lock order everywhere, because two orders are a deadlock: a batch, then jobs by id, then their chunks, then
prefixes, then lanes; a webhook's delivery, then its endpoint, and nothing after that. :func:`jobs.queue.claim.claim` is
the exception that waits for nobody: it takes only rows that no one has locked.
"""
