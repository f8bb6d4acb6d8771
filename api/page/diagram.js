// A reliability diagram as SVG: what was predicted (across) and what was observed (up). It looks like that of the report
// of `scoreline evaluate` (scoreline/judging/diagram.py) and says the same to a screen reader.

import { html, svg } from "./lit-html.js";
import { count } from "./format.js";

const SIZE = 300; // of the square of the diagram
const MARGIN = 45; // around it
const WHOLE = SIZE + 2 * MARGIN;
const MIDDLE = MARGIN + SIZE / 2;
const LARGEST = 12; // the radius of the point of the bin with the most rows; the areas of points are as the numbers of rows

const across = (value) => (MARGIN + SIZE * value).toFixed(1);
const up = (value) => (MARGIN + SIZE * (1 - value)).toFixed(1);
const two = (value) => value.toFixed(2);

/** bins: with `predicted`, `observed` and `rows` of each, in the order of what was predicted. */
export function reliabilityDiagram(title, bins) {
  const most = Math.max(...bins.map((bin) => bin.rows));
  const distance = (bin) => Math.abs(bin.predicted - bin.observed);
  const furthest = bins.reduce((found, bin) => (distance(bin) > distance(found) ? bin : found));
  return html`
    ${svg`<svg class="reliability" role="img" aria-labelledby="reliability-title reliability-said" width=${WHOLE} height=${WHOLE} viewBox="0 0 ${WHOLE} ${WHOLE}" font-size="12">
      <title id="reliability-title">${title}</title>
      <desc id="reliability-said">${bins.length} bins of rows. The one furthest from the line has a mean prediction of ${two(furthest.predicted)}, and ${two(furthest.observed)} of its rows came true.</desc>
      <rect x=${MARGIN} y=${MARGIN} width=${SIZE} height=${SIZE}></rect>
      <line x1=${across(0)} y1=${up(0)} x2=${across(1)} y2=${up(1)} stroke-dasharray="5 4"></line>
      <polyline points=${bins.map((bin) => `${across(bin.predicted)},${up(bin.observed)}`).join(" ")}></polyline>
      ${bins.map((bin) => svg`<circle cx=${across(bin.predicted)} cy=${up(bin.observed)} r=${Math.max(2, LARGEST * Math.sqrt(bin.rows / most)).toFixed(1)}></circle>`)}
      ${[0, 0.25, 0.5, 0.75, 1].map((value) => svg`<text x=${across(value)} y=${MARGIN + SIZE + 18} text-anchor="middle">${value}</text>
        <text x=${MARGIN - 8} y=${Number(up(value)) + 4} text-anchor="end">${value}</text>`)}
      <text x=${MIDDLE} y=${WHOLE - 6} text-anchor="middle">predicted</text>
      <text x="12" y=${MIDDLE} text-anchor="middle" transform="rotate(-90 12 ${MIDDLE})">observed</text>
    </svg>`}
    <details><summary>The diagram as a table</summary>
      <div class="wide" tabindex="0" role="region" aria-label=${title}>
        <table class="bins">
          <thead><tr><th scope="col" class="number">predicted</th><th scope="col" class="number">observed</th><th scope="col" class="number">rows</th></tr></thead>
          <tbody>${bins.map((bin) => html`<tr><td class="number">${bin.predicted.toFixed(3)}</td><td class="number">${bin.observed.toFixed(3)}</td><td class="number">${count(bin.rows)}</td></tr>`)}</tbody>
        </table>
      </div>
    </details>`;
}
