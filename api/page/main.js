// The frame of the page: its navigation, the key of the tab, and which view is shown.

import { html, nothing, render } from "./lit-html.js";
import { batch, batches } from "./batches.js";
import { decide } from "./decide.js";
import { keepKey, keyOfTab } from "./interface.js";
import { job } from "./job.js";
import { jobs } from "./jobs.js";
import { overview } from "./overview.js";
import { prompt } from "./prompt.js";
import { ranking } from "./ranking.js";

const VIEWS = [
  [/^$/, overview],
  [/^jobs$/, jobs],
  [/^jobs\/(job_[0-9A-Za-z-]{1,64})$/, job],
  [/^batches$/, batches],
  [/^batches\/(batch_[0-9A-Za-z-]{1,64})$/, batch],
  [/^rank$/, ranking],
  [/^decide$/, decide],
  [/^try$/, prompt],
];
const NAVIGATION = [["", "Overview"], ["jobs", "Jobs"], ["batches", "Batches"], ["rank", "Rank"], ["decide", "Decide"], ["try", "Try a prompt"]];

let shown = null; // {title, draw} of the view
let leaving = new AbortController(); // ends what the view has under way
let drawing = 0;
let keyWanted = false; // whether the last request was refused for want of a key

const place = () => location.hash.replace(/^#?\/?/, "");

/** Draw soon, once for all changes until then. */
function redraw() {
  drawing ||= requestAnimationFrame(() => {
    drawing = 0;
    document.title = `${shown.title} – Scoreline`;
    render(frame(), document.body);
  });
}

function open({ moved = true } = {}) {
  leaving.abort();
  leaving = new AbortController();
  const path = place();
  const [pattern, view] = VIEWS.find(([pattern]) => pattern.test(path)) ?? [/$/, missing];
  shown = view({ redraw, signal: leaving.signal }, ...path.match(pattern).slice(1));
  redraw();
  // A keyboard or a screen reader goes on at the heading of the new view.
  if (moved) requestAnimationFrame(() => document.querySelector("main h1")?.focus());
}

const missing = () => ({
  title: "Not found",
  draw: () => html`<h1 tabindex="-1">Not found</h1><p>There is no such view. <a href="#/">Go to the overview.</a></p>`,
});

function frame() {
  const here = place().split("/")[0];
  return html`
    <a class="skip" href="#content" @click=${skip}>Skip to the content</a>
    <header>
      <a class="brand" href="#/"><img src="/page/icon.svg" alt="" width="24" height="24">Scoreline</a>
      <nav aria-label="Views">${NAVIGATION.map(([path, name]) => html`<a href="#/${path}" aria-current=${here === path ? "page" : nothing}>${name}</a>`)}</nav>
      <div class="tools">
        <a href="/docs">Interface</a>
        <button type="button" class="quiet" id="key-button" @click=${askForKey}>${keyOfTab() ? "Key ✓" : "Key"}</button>
      </div>
    </header>
    <main id="content" tabindex="-1">
      ${keyWanted ? html`<p class="notice warn" role="alert">This server wants an API key, or does not take this one. <button type="button" @click=${askForKey}>Enter a key</button></p>` : nothing}
      ${shown.draw()}
    </main>
    <dialog id="key-dialog" aria-labelledby="key-title">
      <form @submit=${enterKey}>
        <h2 id="key-title">API key</h2>
        <p>It is kept in this tab until you close it, and sent to this server alone.</p>
        <label for="key">Key</label>
        <input id="key" name="key" type="password" autocomplete="off" spellcheck="false">
        <p class="row"><button type="submit" class="main">Use this key</button>
        <button type="button" @click=${forgetKey}>Forget the key</button>
        <button type="button" class="quiet" @click=${() => dialog().close()}>Close</button></p>
      </form>
    </dialog>`;
}

const dialog = () => document.getElementById("key-dialog");
const askForKey = () => dialog().showModal();

function skip(event) {
  event.preventDefault();
  document.getElementById("content").focus();
}

function enterKey(event) {
  event.preventDefault();
  const field = event.target.elements.key;
  useKey(field.value.trim());
  field.value = "";
}

const forgetKey = () => useKey("");

function useKey(key) {
  keepKey(key);
  keyWanted = false;
  dialog().close();
  open();
}

window.addEventListener("key-needed", () => {
  keyWanted = true;
  redraw();
});
window.addEventListener("hashchange", () => open());
document.body.replaceChildren();
open({ moved: false });
