// Batches of files: their list, and one of them with its jobs and files.

import { html, nothing } from "./lit-html.js";
import { batchLink, count, facts, failure, hasEnded, progress, state, time, warnings } from "./format.js";
import { FINAL, call, keeper, repeat, request } from "./interface.js";
import { PAGE, SECONDS, jobTable, paged } from "./jobs.js";

const MOST_BYTES = 200 * 2 ** 20; // of a file that a browser is asked to keep in memory

const written = ({ request_counts: { total, completed, failed } }) => progress(completed + failed, total, "lines written");

export function batches(context) {
  const list = paged(context, () => `/v1/batches?limit=${PAGE}`);

  const row = (one) => html`<tr>
    <th scope="row">${batchLink(one.id)}</th><td>${state(one.status)}</td><td>${written(one)}</td>
    <td class="number">${count(one.request_counts.failed)}</td><td>${one.endpoint}</td><td>${time(one.created_at)}</td></tr>`;
  const draw = () => html`
    <h1 tabindex="-1">Batches</h1>
    ${failure(list.failed.error)}
    ${list.data?.length
      ? html`<div class="wide" tabindex="0" role="region" aria-label="Batches, newest first"><table>
          <thead><tr><th scope="col">Batch</th><th scope="col">Status</th><th scope="col">Lines</th><th scope="col" class="number">In the error file</th><th scope="col">Endpoint</th><th scope="col">Created</th></tr></thead>
          <tbody>${list.data.map(row)}</tbody></table></div>`
      : html`<p class="dim">${list.data ? "There are none. A batch is a file of requests, sent to /v1/files and /v1/batches." : list.failed.error ? nothing : "Loading …"}</p>`}
    ${list.pager("batches")}`;
  return { title: "Batches", draw };
}

export function batch({ redraw, signal }, id) {
  const path = `/v1/batches/${encodeURIComponent(id)}`;
  let found = null;
  const failed = keeper(redraw);
  let lines = null;
  const change = (news) => {
    found = news;
    redraw();
  };
  const look = async () => {
    const news = await call(path, { signal });
    change(news);
    lines = await call(`/v1/jobs?limit=${PAGE}&batch=${encodeURIComponent(id)}`, { signal });
    redraw();
    return hasEnded(news.status);
  };
  repeat(SECONDS, look, failed, signal, FINAL);

  const cancel = async () => {
    if (confirm("Cancel this batch? Lines that are not scored yet go to the error file.")) {
      await call(`${path}/cancel`, { method: "POST", signal }).then(change, failed);
    }
  };
  const save = async (fileId) => {
    try {
      const file = await call(`/v1/files/${encodeURIComponent(fileId)}`, { signal });
      if (file.bytes > MOST_BYTES) throw { code: "too large for a browser", message: `get /v1/files/${fileId}/content by a command` };
      const content = await (await request(`/v1/files/${encodeURIComponent(fileId)}/content`, { signal })).blob();
      const link = document.createElement("a");
      link.href = URL.createObjectURL(content);
      link.download = `${fileId}.jsonl`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    } catch (news) {
      failed(news);
    }
  };
  const file = (fileId) => (fileId ? html`<span class="id">${fileId}</span> <button type="button" @click=${() => save(fileId)}>Save</button>` : undefined);

  const draw = () => html`
    <p><a href="#/batches">All batches</a></p>
    <h1 tabindex="-1">Batch <span class="id">${id}</span></h1>
    ${failure(failed.error)}
    ${found
      ? html`
          <p class="row" aria-live="polite">${state(found.status)} ${written(found)}
            ${hasEnded(found.status) ? nothing : html`<button type="button" @click=${cancel}>Cancel the batch</button>`}</p>
          ${warnings(found.errors?.data.map((one) => one.message))}
          ${facts([
            ["Endpoint", found.endpoint], ["Model", found.model], ["Created", time(found.created_at)], ["Expires", time(found.expires_at)],
            ["Completed", count(found.request_counts.completed)], ["In the error file", count(found.request_counts.failed)],
            ["Tokens", found.usage ? count(found.usage.total_tokens) : undefined],
            ["Output file", file(found.output_file_id)], ["Error file", file(found.error_file_id)],
            ...Object.entries(found.metadata ?? {}),
          ])}
          ${lines?.data.length ? html`<h2>First jobs of its lines</h2>${jobTable(lines.data, "Jobs of the batch")}` : nothing}`
      : failed.error ? nothing : html`<p class="dim">Loading …</p>`}`;
  return { title: `Batch ${id}`, draw };
}
