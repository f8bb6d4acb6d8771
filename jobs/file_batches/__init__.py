"""Batches in the words of OpenAI's interface: the lines of a file are requests, and each becomes a job of the queue.

What a worker claims at a time is called a batch as well, in :mod:`jobs.queue`. The two have nothing to do with each
other, so these are called file batches in the code.
"""
