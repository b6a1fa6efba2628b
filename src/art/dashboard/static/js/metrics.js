// What figures mean: the server's list (`types/metrics`), which is the one source, and how a name finds its entry in it.

import { api } from "./api.js";
import { useEffect, useState } from "./lib.js";

let asked = null; // the list is part of the server's code: it is read once

/** The server's MetricInfos; empty until they are there. A failure leaves charts without their meaning, and is asked again. */
export function useMetrics() {
  const [list, setList] = useState([]);
  useEffect(() => {
    let current = true;
    asked ??= api.get("views/metrics").then((answer) => answer.metrics);
    asked.then(
      (metrics) => current && setList(metrics),
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
  const own = name.split("/").pop().replaceAll("_", " ");
  if (families.length === 0) return { name, title: own, unit: "", meaning: "A figure that the program logs.", direction: "" };
  const [family] = families;
  const open = family.name.split("/").pop().includes("*");
  return { ...family, name, title: open ? own : family.title };
}
