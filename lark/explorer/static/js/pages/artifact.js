// One artifact: what it was made from, what was made from it, settings, counts, log.

import { h, visible } from "../dom.js";
import { bytes, count, duration, number, when } from "../format.js";
import { isStatic, load } from "../load.js";
import { artifactLink, card, stateTag } from "../parts.js";

export async function open(route) {
  const [kind, print] = route.parts;
  const values = await load(`artifact/${kind}/${print}`);
  const links = (rows, none) => rows.length ? h("ul", { class: "links" }, rows.map((row) => h("li", { class: "row" },
    h("span", { class: "muted link-kind" }, row.kind), row.name === null ? h("code", {}, row.fingerprint) : artifactLink(row.kind, row.fingerprint, visible(row.name)), row.state === "finished" ? null : stateTag(row.state)))) : h("p", { class: "muted" }, none);
  const body = h("div", { class: "stack" },
    h("div", { class: "page-head" },
      h("div", { class: "crumbs" }, h("a", { href: "#/" }, "Overview"), h("span", {}, "/"), h("span", {}, values.kind)),
      h("div", { class: "row" }, h("h1", {}, visible(values.name)), stateTag(values.state)),
      h("p", { class: "muted" }, h("code", {}, values.fingerprint), ` · started ${when(values.started)} · took ${duration(values.seconds)}`, values.git ? [" · git ", h("code", {}, visible(String(values.git)))] : null)),
    values.error ? h("section", { class: "card problem" }, h("p", {}, visible(values.error))) : null,
    values.bar ? card("Progress", values.bar.done, h("div", { class: "meter" }, h("i", { style: { width: `${values.bar.percent}%` } }))) : null,
    h("div", { class: "grid two" },
      card("Made from", null, links(values.inputs, "It has no inputs.")),
      card("Used by", null, links(values.used_by, "Nothing has been made from it yet."))),
    isStatic ? null : card("Runs", "that made or reused it", values.runs.length ? h("ul", { class: "links" }, values.runs.map((run) => h("li", { class: "row" },
      h("span", { class: "muted link-kind" }, run.how), h("b", {}, visible(run.name)), h("span", { class: "muted nowrap", title: run.when }, when(run.when)), h("code", { class: "faint small" }, visible(run.overrides.join(" ")) || "defaults")))) : h("p", { class: "muted" }, "No run has recorded it.")),
    h("div", { class: "grid two" },
      card("Counts", null, tree(values.counts)),
      card("Settings", "everything that can change it", values.config.problem ? h("p", { class: "muted" }, visible(values.config.problem)) : tree(values.config.depends))),
    h("div", { class: "grid two" },
      card("Files", null, h("dl", { class: "kv" }, values.files.map((file) => [h("dt", {}, visible(file.name)), h("dd", { class: "muted" }, bytes(file.bytes))]))),
      card("Packages", null, tree(values.versions))),
    values.log ? card("Log", "its end", h("pre", { class: "log", tabindex: 0 }, visible(values.log))) : null);
  return { title: `${values.kind} ${values.name}`, body };
}

function tree(value) {
  const entries = Object.entries(value ?? {});
  if (!entries.length) return h("p", { class: "muted" }, "None.");
  return h("dl", { class: "kv" }, entries.map(([key, item]) => [h("dt", {}, visible(key)), h("dd", {}, leaf(item))]));
}

function leaf(item) {
  if (item === null) return h("span", { class: "faint" }, "–");
  if (typeof item === "number") return Number.isInteger(item) ? count(item) : number(item, 5);
  if (typeof item === "object" && !Array.isArray(item)) return Object.keys(item).length ? h("details", { class: "plain" }, h("summary", { class: "muted" }, `${Object.keys(item).length} entries`), tree(item)) : "{}";
  const text = visible(Array.isArray(item) ? item.map((part) => (typeof part === "object" ? JSON.stringify(part) : String(part))).join(", ") || "none" : String(item));
  return text.length > 90 && !text.includes(" ") ? h("code", { class: "faint", title: text }, `${text.slice(0, 16)}…`) : text;
}
