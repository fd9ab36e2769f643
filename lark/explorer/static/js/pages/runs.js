// Runs: what is in progress, and the commands that wrote to the store.

import { h, oneLine, scroller, visible } from "../dom.js";
import { duration, plural, when } from "../format.js";
import { list } from "../list.js";
import { artifactLink, card, stateTag, tag } from "../parts.js";

export function runList() {
  return list({
    path: "runs", prefix: "r", search: false, size: 8, label: "Runs", empty: "No run has written to this store.",
    filters: [["state:running", "running"], ["state:failed", "failed"], ["state:interrupted", "interrupted"]],
    columns: [
      { title: "Run", isMain: true, cell: (row) => h("details", { class: "plain" }, h("summary", {}, h("b", {}, visible(row.name))), runDetails(row)) },
      { title: "Settings", class: "run-settings", cell: (row) => h("code", { class: "muted two-lines" }, row.overrides.length ? visible(row.overrides.join(" ")) : "defaults") },
      { title: "State", cell: (row) => (row.state ? stateTag(row.state) : h("span", { class: "faint", title: "An older version made this run and did not record how it ended" }, "not recorded")) },
      { title: "Steps", num: true, hint: "steps that are done, and how many of them were reused", cell: (row) => stepsText(row) },
      { title: "Last change", key: "changed", cell: (row) => h("span", { class: "nowrap", title: row.changed }, when(row.changed)) },
      { title: "Took", num: true, cell: (row) => h("span", { class: "nowrap" }, duration(row.took)) },
    ],
  });
}

function stepsText(row) {
  if (!row.total) return "–";
  const reused = row.steps.filter((step) => step.seconds === null && !step.made.length).length;
  return h("span", { class: "nowrap" }, row.done < row.total ? `${row.done} of ${row.total}` : String(row.done), reused ? h("span", { class: "faint" }, ` (${reused} reused)`) : null);
}

function runDetails(row) {
  const links = (step) => [...step.made, ...step.reused].map((a) => h("span", { class: "row nowrap" }, artifactLink(a.kind, a.fingerprint, visible(`${a.kind} / ${a.name ?? a.fingerprint}`)), a.name === null ? tag("warn", "deleted") : null));
  return h("div", { class: "tight run-details" },
    row.error ? h("p", { class: "small no" }, visible(row.error)) : null,
    row.results.length ? scroller(h("table", {},
      h("thead", {}, h("tr", {}, Object.keys(row.results[0]).map((name) => h("th", {}, visible(name))))),
      h("tbody", {}, row.results.map((result) => h("tr", {}, Object.values(result).map((cell) => h("td", {}, visible(cell)))))))) : null,
    h("dl", { class: "kv" }, row.steps.map((step) => [
      h("dt", {}, visible(step.title)),
      h("dd", {}, h("span", { class: "muted" }, step.seconds === null ? "reused" : duration(step.seconds)), " ", links(step), step.where ? h("span", { class: "muted" }, visible(step.where)) : null),
    ])),
    row.last ? h("p", { class: "small faint" }, visible(row.last)) : null);
}

// Runs with the step that each is in, and the artifacts that are being made.
export function runningCard(values) {
  return card("In progress", "updates by itself", h("div", { class: "tight" },
    values.runs.map((run) => h("div", { class: "progress" },
      h("div", { class: "row between" },
        h("b", {}, visible(run.name)),
        h("span", { class: "muted small" }, `step ${Math.min(run.done + 1, run.total)} of ${run.total}${run.current ? `: ${visible(run.current)}` : ""} · started ${when(run.started)}`)),
      h("div", { class: "steps", role: "img", "aria-label": `${run.done} of ${run.total} steps done` }, Array.from({ length: run.total }, (_, i) => h("i", { class: i < run.done ? "done" : i === run.done ? "now" : null }))))),
    values.running.map((row) => {
      const done = row.bar;
      return h("div", { class: "progress" },
        h("div", { class: "row between" },
          h("span", {}, artifactLink(row.kind, row.fingerprint, `${row.kind} / ${visible(row.name)}`)),
          h("span", { class: "muted small" }, done ? [done.what, done.done, done.left && done.left !== "?" ? `${done.left} left` : null, done.rate && !done.rate.startsWith("?") ? done.rate : null].filter(Boolean).map(visible).join(" · ") : oneLine(row.last) || "waiting for its first output", row.parts ? ` · ${plural(row.parts, "part")} done` : "")),
        h("div", { class: "meter", role: "progressbar", "aria-label": `Progress of ${row.kind} ${row.name}`, "aria-valuenow": done?.percent ?? 0, "aria-valuemin": 0, "aria-valuemax": 100 }, h("i", { style: { width: `${done?.percent ?? 0}%` } })));
    })));
}
