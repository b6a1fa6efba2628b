// What figures mean: the server's list (`types/metrics`), which is the one source, and how a name finds its entry in it.

import { api } from "./api.js";
import { useEffect, useState } from "./lib.js";

let asked = null; // the list is part of the server's code: it is read once

const NOTHING = { metrics: [], sections: {} };

/** The server's MetricInfos; empty until they are there. A failure leaves charts without their meaning, and is asked again. */
export function useMetrics() {
  return useMetricList().metrics;
}

/** `{metrics, sections}`: MetricInfos, and titles of the sections that stand for themselves. */
export function useMetricList() {
  const [list, setList] = useState(NOTHING);
  useEffect(() => {
    let current = true;
    asked ??= api.get("views/metrics");
    asked.then(
      (answer) => current && setList(answer),
      () => {
        asked = null;
      },
    );
    return () => {
      current = false;
    };
  }, []);
  return list;
}

function pattern(name) {
  const parts = name.split("*").map((part) => part.replace(/[.+?^${}()|[\]\\]/g, "\\$&"));
  return new RegExp(`^${parts.join("[^/]+")}$`);
}

function familiesOf(metrics, name) {
  const families = metrics.filter((metric) => metric.name.includes("*") && pattern(metric.name).test(name));
  return families.sort((a, b) => b.name.replaceAll("*", "").length - a.name.replaceAll("*", "").length);
}

/** Whether it is a metric of the program's rollouts: one that only the family of its split holds. */
export function isOwn(metrics, name) {
  return /^(train|val|test)\//.test(name) && !metrics.some((metric) => metric.name === name) && ["train/*", "val/*", "test/*"].includes(familiesOf(metrics, name)[0]?.name);
}

/** The entry of a name: its own, else the family (`val/*`) with the longest fixed text; a bare one where no family holds it. */
export function infoOf(metrics, name) {
  const exact = metrics.find((metric) => metric.name === name);
  if (exact) return exact;
  const families = familiesOf(metrics, name);
  const section = name.split("/")[0];
  const own = name.split("/").pop().replace(/^step_/, "").replace(/^num_/, "").replaceAll("_", " ");
  if (families.length === 0) return { name, title: `${own} (${section})`, unit: "", meaning: "A figure that the program logs.", direction: "" };
  const [family] = families;
  const title = family.name.split("/").pop().includes("*") ? own : family.title;
  // A split's figure says whose it is: another split has one that is called the same.
  const split = /^(\*|train|val|test|discarded)\//.test(family.name) && name !== "val/reward";
  return { ...family, name, title: split ? `${title} (${section})` : title };
}
