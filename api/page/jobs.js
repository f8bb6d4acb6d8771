// A list of jobs whose progress is live.

import { html, nothing } from "./lit-html.js";
import { count, failure, hasEnded, jobLink, progress, state, time } from "./format.js";
import { call, follow, keeper, repeat } from "./interface.js";

export const SECONDS = 4;
const STREAMS = 2; // followed at a time: a browser has six connections to a server, which all of its tabs share
export const PAGE = 25;
const STATUSES = ["receiving", "queued", "running", "succeeded", "failed", "cancelled", "expired"];

/** Return a list that is read again every few seconds, in pages. `path` has a query already. `found` is called after each look. */
export function paged({ redraw, signal }, path, found = () => {}) {
  const list = { data: null, hasMore: false, failed: keeper(redraw), turn, pager };
  let trail = []; // the last ids of the pages before this one
  const place = () => path() + (trail.length ? `&after=${encodeURIComponent(trail.at(-1))}` : "");

  async function look() {
    const asked = place();
    const page = await call(asked, { signal });
    if (asked !== place()) return; // another page was opened meanwhile
    list.data = page.data;
    list.hasMore = page.has_more;
    found();
    redraw();
  }

  /** Go to the page behind these. */
  function turn(newTrail) {
    trail = newTrail;
    look().catch((news) => news.name === "AbortError" || list.failed(news));
  }

  function pager(name) {
    const shown = list.data?.length;
    return html`<nav class="row pager" aria-label="Pages of ${name}">
      <button type="button" ?disabled=${!trail.length} @click=${() => turn([])}>Newest</button>
      <button type="button" ?disabled=${!trail.length} @click=${() => turn(trail.slice(0, -1))}>Newer</button>
      <button type="button" ?disabled=${!list.hasMore} @click=${() => turn([...trail, list.data.at(-1).id])}>Older</button>
      <span aria-live="polite">${shown ? `${name[0].toUpperCase() + name.slice(1)} ${count(trail.length * PAGE + 1)} to ${count(trail.length * PAGE + shown)}` : ""}</span>
    </nav>`;
  }

  repeat(SECONDS, look, list.failed, signal);
  return list;
}

/** Return such a list of jobs, of which the first unfinished ones are followed by their events. */
export function liveJobs(context, path) {
  const { redraw, signal } = context;
  const followed = new Map(); // id to what ends its stream
  const list = paged(context, path, followSome);

  function followSome() {
    const wanted = list.data.filter((job) => !hasEnded(job.status)).slice(0, STREAMS).map((job) => job.id);
    for (const [id, stream] of followed) if (!wanted.includes(id)) (stream.abort(), followed.delete(id));
    for (const id of wanted) if (!followed.has(id)) followOne(id);
  }

  function followOne(id) {
    const stream = new AbortController();
    followed.set(id, stream);
    const change = (news) => {
      const job = list.data.find((job) => job.id === id);
      if (!job || news.deleted) return;
      Object.assign(job, { status: news.status, progress: news.progress });
      redraw();
    };
    follow(`/v1/jobs/${encodeURIComponent(id)}/events`, { progress: change, end: change }, () => {}, AbortSignal.any([signal, stream.signal]));
  }
  return list;
}

export const jobTable = (jobs, name) =>
  jobs.length
    ? html`<div class="wide" tabindex="0" role="region" aria-label=${name}>
        <table class="jobs">
          <thead><tr><th scope="col">Job</th><th scope="col">Status</th><th scope="col">Items</th><th scope="col">Priority</th><th scope="col">Accepted</th><th scope="col">Metadata</th></tr></thead>
          <tbody>${jobs.map((job) => html`<tr>
            <th scope="row">${jobLink(job.id)}</th><td>${state(job.status)}</td>
            <td>${progress(job.progress.scored_items, job.progress.total_items, "items scored")}</td>
            <td>${job.priority}</td><td>${time(job.created_at)}</td><td class="cut">${metadata(job.metadata)}</td></tr>`)}</tbody>
        </table>
      </div>`
    : html`<p class="dim">There are none.</p>`;

const metadata = (values) => Object.entries(values).map(([name, value]) => html`<span class="tag">${name}: ${value}</span> `);

export function jobs(context) {
  let status = "";
  const list = liveJobs(context, () => `/v1/jobs?limit=${PAGE}${status ? `&status=${status}` : ""}`);
  const choose = (event) => ((status = event.target.value), list.turn([]));

  const draw = () => html`
    <h1 tabindex="-1">Jobs</h1>
    <p class="row"><label for="status">Status</label>
      <select id="status" @change=${choose}><option value="">all</option>${STATUSES.map((one) => html`<option>${one}</option>`)}</select></p>
    ${failure(list.failed.error)}
    ${list.data ? jobTable(list.data, "Jobs, newest first") : list.failed.error ? nothing : html`<p class="dim">Loading …</p>`}
    ${list.pager("jobs")}`;
  return { title: "Jobs", draw };
}
