// How numbers, times, states and failures are shown. Whatever comes from users or the server is text, never HTML.

import { html, nothing } from "./lit-html.js";

const LANGUAGE = "en";
const whole = new Intl.NumberFormat(LANGUAGE);
const short = new Intl.NumberFormat(LANGUAGE, { notation: "compact", maximumSignificantDigits: 3 });
const relative = new Intl.RelativeTimeFormat(LANGUAGE, { numeric: "auto" });
const exact = new Intl.DateTimeFormat(LANGUAGE, { dateStyle: "medium", timeStyle: "medium" });

export const count = (number) => whole.format(number);
export const compact = (number) => short.format(number);
export const plural = (number, one, several = `${one}s`) => `${count(number)} ${number === 1 ? one : several}`;

/** A score with three significant digits, or what stands for it where JSON has none. */
export function score(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (value === 0) return "0";
  return size >= 1e-4 && size < 1e5 ? String(Number(value.toPrecision(3))) : value.toExponential(1);
}

export const percent = (share) => `${Number((100 * share).toFixed(1))} %`;

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "not known";
  if (seconds < 0.0005) return "0 s";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${Number(seconds.toFixed(1))} s`;
  // Rounded before it is divided, so that no minute has 60 seconds.
  const whole = Math.round(seconds), minutes = Math.round(seconds / 60);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

export function time(unixSeconds) {
  if (unixSeconds === null || unixSeconds === undefined) return "–";
  const date = new Date(unixSeconds * 1000);
  const past = unixSeconds - Date.now() / 1000;
  const [unit, size] = UNITS.find(([, size]) => Math.abs(past) >= size) ?? UNITS.at(-1);
  return html`<time datetime=${date.toISOString()} title=${exact.format(date)}>${relative.format(Math.trunc(past / size), unit)}</time>`;
}

const KINDS = {
  succeeded: "good", completed: "good",
  running: "busy", receiving: "busy", in_progress: "busy", validating: "busy", finalizing: "busy", cancelling: "busy",
  failed: "bad", expired: "bad",
};

export const hasEnded = (status) => ["succeeded", "completed", "failed", "cancelled", "expired"].includes(status);
export const state = (status) => html`<span class="state ${KINDS[status] ?? "calm"}">${status.replace("_", " ")}</span>`;

export function progress(done, total, what) {
  const share = total ? done / total : 0;
  return html`<span class="progress"><progress max="1" .value=${share} aria-label="${count(done)} of ${count(total)} ${what}"></progress><span class="number">${count(done)} / ${count(total)}</span></span>`;
}

/** A failure of the last request, which a screen reader announces. */
export const failure = (error) =>
  html`<div role="alert">${error
    ? html`<p class="notice bad"><strong>${error.code ?? "error"}</strong> ${error.message}</p>`
    : nothing}</div>`;

export const warnings = (lines) =>
  lines?.length ? html`<ul class="notice warn" aria-label="Warnings">${lines.map((line) => html`<li>${line}</li>`)}</ul>` : nothing;

/** Facts as a list of names and values. Values that are undefined are left out. */
export const facts = (pairs) =>
  html`<dl class="facts">${pairs.filter(([, value]) => value !== undefined).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

/** A figure with its name above it, and below it what it counts. */
export const tile = (name, value, unit, picture = nothing) =>
  html`<div class="tile"><p class="name">${name}</p><p class="big">${value}</p><p class="dim">${unit}</p>${picture}</div>`;

/** A share from 0 to 1 as a bar, beside which the number stands. */
export const bar = (share) => html`<span class="share"><span class="bar" .style=${`width: ${share * 100}%`}></span></span>`;

/** Text whose white space is seen: a space at the beginning of a label makes another token of it. */
export const visible = (text) => text.replace(/ /g, "·").replace(/\n/g, "↵").replace(/\t/g, "→") || "∅";

export const jobLink = (id) => html`<a class="id" href="#/jobs/${encodeURIComponent(id)}">${id}</a>`;
export const batchLink = (id) => html`<a class="id" href="#/batches/${encodeURIComponent(id)}">${id}</a>`;
