// The model, the workers and what waits, at a glance; and the latest jobs.

import { html, nothing, svg } from "./lit-html.js";
import { compact, count, duration, facts, failure, plural, tile, time, warnings } from "./format.js";
import { call, keeper, repeat } from "./interface.js";
import { jobTable, liveJobs } from "./jobs.js";

const SECONDS = 2;
const KEPT = 150; // looks: five minutes
const history = []; // of {waiting, pace}; it is kept while other views are shown

export function overview({ redraw, signal }) {
  let found = null;
  const failed = keeper(redraw);
  const latest = liveJobs({ redraw, signal }, () => "/v1/jobs?limit=8");

  repeat(
    SECONDS,
    async () => {
      found = await call("/v1/overview", { signal });
      history.push({ waiting: found.waiting.tokens, pace: pace(found) ?? 0 });
      if (history.length > KEPT) history.shift();
      redraw();
    },
    failed,
    signal,
  );

  const draw = () => html`
    <h1 tabindex="-1">Overview</h1>
    ${failure(failed.error)}
    ${found ? numbers(found) : html`<p class="dim">${failed.error ? nothing : "Loading …"}</p>`}
    <section>
      <h2>Latest jobs</h2>
      ${failure(failed.error ? null : latest.failed.error)}
      ${latest.data ? jobTable(latest.data, "Jobs, newest first") : nothing}
      ${latest.hasMore ? html`<p><a href="#/jobs">All jobs</a></p>` : nothing}
    </section>`;
  return { title: "Overview", draw };
}

function pace({ workers }) {
  const measured = workers.map((worker) => worker.tokens_per_second).filter((rate) => rate !== null);
  return measured.length ? measured.reduce((sum, rate) => sum + rate, 0) : null;
}

function numbers(found) {
  const { waiting, workers } = found;
  const rate = pace(found);
  return html`
    ${warnings(found.warnings)}
    ${workers.length ? nothing : html`<p class="notice warn">No worker is live. Jobs are accepted, and wait for one.</p>`}
    <div class="tiles">
      ${tile("Workers", count(workers.length), workers.length === 1 ? "live" : "live together")}
      ${tile("Pace", rate === null ? "–" : compact(rate), "tokens a second", line("Pace", "pace"))}
      ${tile("Your work waits", compact(waiting.tokens), `tokens in ${plural(waiting.chunks, "chunk")}`, line("Waiting tokens", "waiting"))}
      ${tile("It waits for", waiting.chunks ? duration(waiting.oldest_seconds) : "–", waiting.chunks ? "the first of it" : "nothing waits")}
      ${tile("Done in about", waiting.estimated_seconds === null ? "–" : duration(waiting.estimated_seconds), waiting.estimated_seconds === null ? "nobody knows the pace yet" : "an estimate")}
    </div>
    <section>
      <h2>What is served</h2>
      ${facts([["Model", found.model], ["Longest sequence", `${count(found.max_model_len)} tokens`], ["Template of rankings", found.template ?? "none"], ["Version", found.version]])}
      ${workers.length ? workerTable(workers) : nothing}
    </section>`;
}

/** The last minutes as a line. Who can't see it has the number beside it. */
function line(name, of) {
  const values = history.map((look) => look[of]);
  const most = Math.max(...values, 1);
  const wide = Math.max(values.length, 30) - 1;
  const points = values.map((value, n) => `${((n + wide + 1 - values.length) / wide) * 100},${24 - (value / most) * 22}`);
  return svg`<svg class="line" viewBox="0 0 100 25" preserveAspectRatio="none" role="img" aria-label=${`${name}, last ${duration(values.length * SECONDS)}`}><polyline points=${points.join(" ")}></polyline></svg>`;
}

const workerTable = (workers) => html`
  <div class="wide" tabindex="0" role="region" aria-label="Live workers">
    <table>
      <thead><tr><th scope="col">Worker</th><th scope="col">Numbers</th><th scope="col" class="number">Tokens a second</th><th scope="col">Started</th><th scope="col">Seen</th></tr></thead>
      <tbody>${workers.map((worker) => html`<tr>
        <th scope="row">${worker.device}</th><td>${worker.dtype}</td>
        <td class="number">${worker.tokens_per_second === null ? "not measured" : compact(worker.tokens_per_second)}</td>
        <td>${time(worker.started_at)}</td><td>${time(worker.last_seen)}</td></tr>`)}</tbody>
    </table>
  </div>`;
