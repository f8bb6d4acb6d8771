"""The places in the code of API, workers and deliverers at which tests kill or freeze a process.

Each is a function as one module calls it. Importing this file fails if a function is renamed, moved or no longer used
there.
"""

from __future__ import annotations

import api.acceptance.accepting
import api.batches.feeder
import api.batches.work
import api.requests.uploads.file_upload
import api.routes.batches
import api.routes.jobs
import jobs.queue.claims.claim
import jobs.queue.ending
import jobs.queue.sweep
import workers.delivery.loop
import workers.engine_loop.claimer
import workers.engine_loop.lease_renewal
import workers.engine_loop.loop
import workers.engine_loop.score_committer
import workers.engine_loop.serving
import workers.sweeping
from jobs.file_batches.creating import create_batch
from jobs.file_batches.feeding import cancel_jobs, feed
from jobs.file_batches.writing import end_batch, write_lines
from jobs.files.receiving import accept_file, stage_file
from jobs.queue.accept import accept_group
from jobs.queue.ending import cancel
from jobs.queue.fair_shares import update_flows
from jobs.queue.finish import finish
from jobs.queue.lease import release, renew, return_batch
from jobs.queue.removal import remove_jobs
from jobs.queue.sweep import sweep
from jobs.webhooks.deliveries import claim_deliveries, record_attempt
from tests.faults.injection.points import place
from workers.sweeping import start_sweeping

ACCEPT = place(api.acceptance.accepting, accept_group)  # an API process stores the jobs of a group
CANCEL = place(api.routes.jobs, cancel)  # an API process cancels a job
REMOVE_JOB = place(jobs.queue.ending, remove_jobs)  # an API process removes the rows of a job that it has deleted

STAGE_FILE = place(api.requests.uploads.file_upload, stage_file)  # an API process stores a part of a file
ACCEPT_FILE = place(api.requests.uploads.file_upload, accept_file)  # an API process makes a file visible
CREATE_BATCH = place(api.routes.batches, create_batch)  # an API process stores a batch
FEED = place(api.batches.feeder, feed)  # an API process turns lines of a batch into jobs
WRITE_LINES = place(api.batches.work, write_lines)  # an API process writes results of a batch
CANCEL_JOBS = place(api.batches.work, cancel_jobs)  # an API process cancels jobs of a batch
END_BATCH = place(api.batches.work, end_batch)  # an API process ends a batch

START_SWEEPING = place(workers.engine_loop.serving, start_sweeping)  # a registered worker has not yet looked for work
CLAIM = place(workers.engine_loop.claimer, jobs.queue.claims.claim.claim)  # a worker claims a batch
CHARGE_CLAIM = place(jobs.queue.claims.claim, update_flows)  # a claim has taken its chunks, and its transaction goes on
RENEW = place(workers.engine_loop.lease_renewal, renew)  # a worker renews the lease of its batch
FINISH = place(workers.engine_loop.score_committer, finish)  # a worker commits scores
RELEASE = place(workers.engine_loop.loop, release)  # a worker gives back what is left of its batch

RETURN_BATCH = place(jobs.queue.sweep, return_batch)  # a sweep returns a lost batch; its transaction goes on
SWEEP = place(workers.sweeping, sweep)  # a worker sweeps; when this returns, all is committed and nobody was rung

CLAIM_DELIVERIES = place(workers.delivery.loop, claim_deliveries)  # a deliverer claims webhooks to send
RECORD_ATTEMPT = place(workers.delivery.loop, record_attempt)  # a deliverer stores how the sending of a webhook ended
