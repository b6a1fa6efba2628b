// Settings as lines: a nested configuration as dotted names, and where several differ.

/** `{engine: {max_batch: 8}}` as `[["engine.max_batch", 8]]`; empty parts stay, as themselves. */
export function flattened(config, prefix = "") {
  return Object.entries(config ?? {}).flatMap(([key, value]) => {
    const name = prefix ? `${prefix}.${key}` : key;
    const nested = value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length > 0;
    return nested ? flattened(value, name) : [[name, value]];
  });
}

export function written(value) {
  if (value === undefined) return "–";
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Names whose values are not the same in all configurations, with the values: `[[name, [value, ...]], ...]`. */
export function differences(configs) {
  const maps = configs.map((config) => new Map(flattened(config)));
  const names = [...new Set(maps.flatMap((map) => [...map.keys()]))].sort();
  return names
    .map((name) => [name, maps.map((map) => map.get(name))])
    .filter(([, values]) => new Set(values.map((value) => JSON.stringify(value))).size > 1);
}
