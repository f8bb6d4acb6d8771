// One job: its progress, and its scores as a heat map of items by labels.

import { html, nothing } from "./lit-html.js";
import { answered } from "./decide.js";
import { count, duration, facts, failure, hasEnded, plural, progress, state, time, warnings } from "./format.js";
import { heatMap } from "./heat.js";
import { FINAL, call, follow, keeper, repeat } from "./interface.js";
import { worth } from "./worth.js";

const AT_ONCE = 20_000; // items whose scores are loaded before the user is asked for more

export function job({ redraw, signal }, id) {
  const path = `/v1/jobs/${encodeURIComponent(id)}`;
  const failed = keeper(redraw);
  const map = heatMap({ redraw, signal }, path);
  const judgement = worth({ redraw }, map);
  let found = null;
  let place = null; // the id of the last event with scores
  let wanted = AT_ONCE;
  let stream = new AbortController();

  const change = (news) => {
    found = { ...found, ...news };
    if (found.progress.total_items) map.readLabels();
    redraw();
  };
  const end = (news) => {
    change(news);
    // The answers of a decision are not in its events.
    if (isDecision() && !news.deleted) repeat(1, read, failed, signal, FINAL);
  };
  const isDecision = () => found.kind === "decision";

  /** Follow the job: with its scores while there is room for more, and its progress alone afterwards. */
  async function listen() {
    const own = anew();
    let isFull = false;
    const scores = ({ data }, eventId) => {
      map.add(data);
      place = eventId;
      isFull = map.size >= wanted && map.size < found.progress.total_items;
      if (isFull) own.abort();
      redraw();
    };
    await follow(`${path}/events?scores=${!isDecision()}`, { progress: change, scores, end }, failed, own.signal, place);
    if (isFull && own === stream && !hasEnded(found.status)) {
      await follow(`${path}/events`, { progress: change, end }, failed, anew().signal);
    }
  }

  /** End the stream that is open, and return what ends the next one. */
  function anew() {
    stream.abort();
    stream = new AbortController();
    if (signal.aborted) stream.abort();
    return stream;
  }
  signal.addEventListener("abort", () => stream.abort());

  const read = async () => {
    const news = await call(path, { signal });
    if (news.kind !== "decision") delete news.result; // the stream has the scores
    change(news);
    return true;
  };
  repeat(1, read, failed, signal, FINAL).then(() => found && listen());

  const more = () => {
    wanted += AT_ONCE;
    listen();
  };
  const cancel = async () => {
    if (confirm("Cancel this job? What is scored already stays.")) {
      await call(`${path}/cancel`, { method: "POST", signal }).then(change, failed);
    }
  };

  const draw = () => html`
    <p><a href="#/jobs">All jobs</a></p>
    <h1 tabindex="-1">Job <span class="id">${id}</span></h1>
    ${failure(failed.error)}
    ${found ? body() : failed.error ? nothing : html`<p class="dim">Loading …</p>`}`;

  function body() {
    if (found.deleted) return html`<p class="notice warn">The job was deleted.</p>`;
    const { total_items: total, scored_items: scored } = found.progress;
    return html`
      <p class="row" role="status">${state(found.status)} ${progress(scored, total, "items scored")}
        ${hasEnded(found.status) ? nothing : html`<button type="button" @click=${cancel}>Cancel the job</button>`}</p>
      ${found.error ? html`<p class="notice bad"><strong>${found.error.code}</strong> ${found.error.message}</p>` : nothing}
      ${warnings(found.warnings)}
      ${map.query?.text ? html`<p class="query"><span class="dim">Query</span> <code>${map.query.text}${map.query.is_cut ? " …" : ""}</code></p>` : nothing}
      <details><summary>About the job</summary>
        ${facts([
          ["Model", found.model], ["Priority", found.priority], ["Accepted", time(found.created_at)],
          ["Waited", found.started_at ? duration(found.started_at - found.created_at) : "–"],
          ["Took", found.finished_at && found.started_at ? duration(found.finished_at - found.started_at) : "–"],
          ["Tokens", found.usage ? count(found.usage.prompt_tokens) : "–"],
          ["Shared tokens", found.usage ? count(found.usage.prompt_tokens_details.cached_tokens) : "–"],
          ...Object.entries(found.metadata ?? {}),
        ])}
      </details>
      ${map.size ? judgement.draw(total) : nothing}
      <h2>${isDecision() ? "Answers" : "Scores"}</h2>
      ${isDecision() ? answers() : map.size ? map.draw() : html`<p class="dim">${hasEnded(found.status) ? "No item was scored." : "No item is scored yet."}</p>`}
      ${map.size >= wanted && map.size < total
        ? html`<p class="row">The scores of the first ${plural(map.size, "item")} are loaded. <button type="button" @click=${more}>Load ${count(AT_ONCE)} more</button></p>`
        : nothing}`;
  }

  function answers() {
    if (!found.result) return html`<p class="dim">${hasEnded(found.status) ? "No question was answered." : "The questions are not answered yet."}</p>`;
    return Object.entries(found.result.answers).map(([name, one], n) => answered(one.name ?? (one.name === null ? `Question ${n + 1}` : name), one));
  }
  return { title: `Job ${id}`, draw };
}
