// Scores as a heat map: a table of items by labels that can be sorted, in pages, and a picture of all items above it.

import { html, nothing } from "./lit-html.js";
import { count, score, visible } from "./format.js";
import { FINAL, call, repeat } from "./interface.js";

const CELLS = 4_000; // of a page of the table, which has at most 100 rows
const STEPS = 10;
const TEXTS = 100; // items whose texts are asked for at a time

export function heatMap({ redraw, signal }, path) {
  const rows = []; // {index, scores, label_mass} in the order of the items
  const texts = new Map(); // of items by their index: {text, tokens}, or null while they are asked for
  let order = []; // the places in `rows`, in the order that is shown
  let sort = { by: "index", down: false }; // by the index, the label mass, or the number of a label
  let page = 0;
  let scale = "value";
  let columns = 0;
  let ranges = []; // the least and the greatest score of each label
  let asked = null; // the query and the labels, as the server tells them
  let isAsked = false;
  let hasLabels = true;
  let names = null; // of the labels, if all items have the same
  let labels = null; // the texts of the labels, if there are several and this server knows them all
  let stale = true; // whether the order must be found again

  const value = (row, by) => (by === "index" ? row.index : by === "mass" ? row.label_mass : row.scores[by]) ?? -Infinity;

  function add(data) {
    for (const line of data) {
      // A likelihood has no labels: its one column is the log-probability of the item.
      const row = line.scores ? line : { ...line, scores: [line.logprob] };
      hasLabels = Boolean(line.scores);
      rows.push(row);
      columns = Math.max(columns, row.scores.length);
      row.scores.forEach((one, n) => {
        if (one === null) return;
        const [least, most] = ranges[n] ?? [one, one];
        ranges[n] = [Math.min(least, one), Math.max(most, one)];
      });
    }
    stale = true;
  }

  function arrange() {
    if (!stale) return;
    stale = false;
    order = rows.map((_, n) => n);
    const sign = sort.down ? -1 : 1;
    // Ties stand in the order of the items.
    order.sort((a, b) => sign * (value(rows[a], sort.by) - value(rows[b], sort.by) || 0) || a - b);
  }

  const sortBy = (by) => () => {
    // The first press puts the best first; items begin with the first.
    sort = { by, down: sort.by === by ? !sort.down : by !== "index" };
    stale = true;
    page = 0;
    redraw();
  };

  const perPage = () => Math.max(10, Math.min(100, Math.floor(CELLS / Math.max(1, columns))));
  const pages = () => Math.max(1, Math.ceil(rows.length / perPage()));
  const turn = (to) => () => {
    page = Math.max(0, Math.min(pages() - 1, to));
    redraw();
  };

  /** How warm a score is: 0 to STEPS. */
  function warmth(number, label) {
    if (number === null || !ranges[label]) return 0;
    const [least, most] = scale === "value" && hasLabels ? [0, Math.max(1, ranges[label][1])] : ranges[label];
    return most > least ? Math.max(0, Math.min(STEPS, Math.round(((number - least) / (most - least)) * STEPS))) : STEPS / 2;
  }

  /** Read some items, again until the server answers, and call `take` with them. */
  const read = (indices, take) =>
    repeat(
      1,
      async () => {
        take(await call(`${path}/items?${indices.map((index) => `index=${index}`).join("&")}`, { signal }));
        redraw();
        return true;
      },
      () => {},
      signal,
      FINAL,
    );

  /** Ask for the names of the labels, once. A server of an older version does not know them. */
  function readLabels() {
    if (isAsked) return;
    isAsked = true;
    read([0], (found) => {
      asked = found;
      names = found.labels;
      labels = names?.length > 1 && names.every(({ text }) => text !== null) ? names.map(({ text }) => text) : null;
    });
  }

  function readTexts(indices) {
    const wanted = indices.filter((index) => !texts.has(index)).slice(0, TEXTS);
    if (!asked || !wanted.length) return;
    for (const index of wanted) texts.set(index, null);
    read(wanted, ({ data }) => data.forEach((item) => texts.set(item.index, item)));
  }

  const name = (n) => (names?.[n]?.text ? visible(names[n].text) : hasLabels ? `label ${n}` : "log-probability");
  const heading = (by, text, title) => html`<th scope="col" class=${by === "index" ? "item" : "number"} aria-sort=${sort.by === by ? (sort.down ? "descending" : "ascending") : nothing}>
    <button type="button" class="sort" title=${title ?? nothing} @click=${sortBy(by)}>${text}<span aria-hidden="true">${sort.by === by ? (sort.down ? " ▼" : " ▲") : ""}</span></button></th>`;

  function itemCell(row) {
    const item = texts.get(row.index);
    return html`<th scope="row"><span class="place">${count(row.index)}</span>${item
      ? html` <span class="text" title=${item.text ?? ""}>${(item.text ?? "").replace(/\n/g, " ↵ ") || "∅"}${item.is_cut ? " …" : ""}</span>`
      : nothing}</th>`;
  }

  function draw() {
    arrange();
    page = Math.min(page, pages() - 1);
    const first = page * perPage();
    const shown = order.slice(first, first + perPage()).map((n) => rows[n]);
    const hasMass = rows[0].label_mass !== undefined;
    const places = Array.from({ length: columns }, (_, n) => n);
    readTexts(shown.map((row) => row.index));
    requestAnimationFrame(() => paint(first, shown.length));
    return html`
      <p class="row"><label for="scale">Colours</label>
        <select id="scale" @change=${(event) => ((scale = event.target.value), redraw())}>
          <option value="value">from 0 to 1</option><option value="column">from the least to the greatest of each label</option></select>
        <span class="legend" aria-hidden="true">${Array.from({ length: STEPS + 1 }, (_, n) => html`<i class="heat h${n}"></i>`)}</span></p>
      <canvas class="map" width="1000" height=${Math.min(160, Math.max(24, columns * 16))} role="img"
        aria-label="All ${count(rows.length)} items from left to right in this order, a line for each label. The table has the same numbers." @click=${jump}></canvas>
      <div class="wide" tabindex="0" role="region" aria-label="Scores of items by labels">
        <table class="scores">
          <caption class="unseen">Scores, a row for each item and a column for each label. The headings sort.</caption>
          <thead><tr>${heading("index", "Item")}${places.map((n) => heading(n, name(n), names?.[n] ? `token ${names[n].ids.join(" ")}` : undefined))}
            ${hasMass ? heading("mass", "Label mass", "the share of the probability that the labels have together") : nothing}</tr></thead>
          <tbody>${shown.map((row) => html`<tr>${itemCell(row)}
            ${places.map((n) => (n < row.scores.length ? html`<td class="heat h${warmth(row.scores[n], n)}">${score(row.scores[n])}</td>` : html`<td></td>`))}
            ${hasMass ? html`<td class="number ${row.label_mass < 0.1 ? "doubt" : ""}">${score(row.label_mass)}</td>` : nothing}</tr>`)}</tbody>
        </table>
      </div>
      <nav class="row pager" aria-label="Pages of scores">
        <button type="button" ?disabled=${page === 0} @click=${turn(0)}>First</button>
        <button type="button" ?disabled=${page === 0} @click=${turn(page - 1)}>Previous</button>
        <button type="button" ?disabled=${page >= pages() - 1} @click=${turn(page + 1)}>Next</button>
        <button type="button" ?disabled=${page >= pages() - 1} @click=${turn(pages() - 1)}>Last</button>
        <span aria-live="polite">Rows ${count(first + 1)} to ${count(first + shown.length)} of ${count(rows.length)}</span>
      </nav>`;
  }

  /** Paint all items, and mark those of this page of the table. */
  function paint(first, length) {
    const canvas = document.querySelector("canvas.map");
    if (!canvas || !rows.length) return;
    const context = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    const colours = Array.from({ length: STEPS + 1 }, (_, n) => style.getPropertyValue(`--h${n}`));
    const { width, height } = canvas;
    const shownColumns = Math.min(columns, height);
    const tall = height / shownColumns;
    const wide = Math.max(1, width / order.length);
    context.clearRect(0, 0, width, height);
    for (let x = 0; x < Math.min(width, order.length); x++) {
      const at = Math.floor((x / Math.min(width, order.length)) * order.length);
      const scores = rows[order[at]].scores;
      for (let n = 0; n < Math.min(shownColumns, scores.length); n++) {
        context.fillStyle = colours[warmth(scores[n], n)];
        context.fillRect((at / order.length) * width, n * tall, Math.ceil(wide), tall);
      }
    }
    context.strokeStyle = style.color;
    context.lineWidth = 2;
    context.strokeRect((first / rows.length) * width + 1, 1, Math.max(2, (length / rows.length) * width - 2), height - 2);
  }

  function jump(event) {
    const box = event.target.getBoundingClientRect();
    const at = Math.floor(((event.clientX - box.left) / box.width) * rows.length);
    turn(Math.floor(at / perPage()))();
  }

  return {
    add, draw, readLabels,
    get size() { return rows.length; },
    get query() { return asked?.query; },
    get rows() { return rows; },
    get labels() { return hasLabels ? labels : null; },
  };
}
