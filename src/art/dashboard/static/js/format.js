// Figures as a person reads them, each with its unit. A missing figure is "–".

const NONE = "–";
const THIN = "\u202f"; // a narrow space that does not break, between figure and unit

const missing = (value) => value === null || value === undefined || Number.isNaN(value);

/** A number to three or four significant digits; thousands as k, M, G. */
export function number(value) {
  if (missing(value)) return NONE;
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const sign = value < 0 ? "−" : "";
  if (size === 0) return "0";
  if (size >= 1e4) {
    for (const [bound, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (size >= bound) return `${sign}${trim((size / bound).toPrecision(3))}${THIN}${letter}`;
    }
  }
  if (size >= 1000) return `${sign}${count(size)}`;
  if (Number.isInteger(value)) return `${sign}${size}`;
  if (size >= 0.001) return `${sign}${trim(size >= 100 ? size.toFixed(1) : size.toPrecision(3))}`;
  const [digits, power] = size.toExponential(1).split("e");
  return `${sign}${trim(digits)}e${power.replace("+", "").replace("-", "−")}`;
}

function trim(text) {
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : String(Number(text));
}

/** A whole number with thousands apart: 12 345. */
export function count(value) {
  return missing(value) ? NONE : Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, THIN);
}

/** A count with its noun: `of(1, "rollout")`, `of(12, "rollout")`. */
export function of(value, noun, plural = `${noun}s`) {
  return `${count(value)} ${value === 1 ? noun : plural}`;
}

/** A reward: three decimals, so that a column of them lines up. */
export function reward(value) {
  if (missing(value)) return NONE;
  if (Math.abs(value) >= 1000) return number(value);
  return value.toFixed(3).replace("-", "−");
}

export function signed(value, digits = 3) {
  if (missing(value)) return NONE;
  const text = Math.abs(value).toFixed(digits);
  return `${value < 0 ? "−" : "+"}${text}`;
}

export function percent(value, digits = 1) {
  return missing(value) ? NONE : `${number(Number((value * 100).toFixed(digits + 1)))}${THIN}%`;
}

export function usd(value) {
  if (missing(value)) return NONE;
  return `$${Math.abs(value) >= 0.01 || value === 0 ? value.toFixed(2) : value.toPrecision(2)}`;
}

export function bytes(value) {
  if (missing(value)) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let index = 0;
  let size = value;
  while (size >= 1000 && index < units.length - 1) {
    size /= 1000;
    index += 1;
  }
  return `${index ? trim(size.toPrecision(3)) : size}${THIN}${units[index]}`;
}

/** Seconds as 340 ms, 12.3 s, 4 min 05 s, 2 h 03 min, 3 d 4 h. */
export function duration(seconds) {
  if (missing(seconds)) return NONE;
  const size = Math.abs(seconds);
  const sign = seconds < 0 ? "−" : "";
  const two = (value) => String(value).padStart(2, "0");
  if (size === 0) return `0${THIN}s`;
  if (size < 0.9995) return `${sign}${Math.round(size * 1000)}${THIN}ms`;
  if (size < 59.95) return `${sign}${trim(size.toFixed(1))}${THIN}s`;
  const whole = Math.round(size);
  if (whole < 3600) return `${sign}${Math.floor(whole / 60)}${THIN}min ${two(whole % 60)}${THIN}s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 48 * 60) return `${sign}${Math.floor(minutes / 60)}${THIN}h ${two(minutes % 60)}${THIN}min`;
  const hours = Math.round(whole / 3600);
  return `${sign}${Math.floor(hours / 24)}${THIN}d ${hours % 24}${THIN}h`;
}

/** How long ago a time (seconds since 1970) is: "just now", "5 min ago", "3 d ago". */
export function ago(time, now = Date.now() / 1000) {
  if (missing(time)) return NONE;
  const past = now - time;
  if (past < -5) return `in ${coarse(-past)}`;
  return past < 5 ? "just now" : `${coarse(past)} ago`;
}

function coarse(seconds) {
  if (seconds < 60) return `${Math.round(seconds)}${THIN}s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)}${THIN}min`;
  if (seconds < 48 * 3600) return `${Math.round(seconds / 3600)}${THIN}h`;
  return `${Math.round(seconds / 86400)}${THIN}d`;
}

/** A moment in this browser's time zone: 2026-11-30 15:04:05. */
export function clock(time) {
  if (missing(time)) return NONE;
  const at = new Date(time * 1000);
  const two = (value) => String(value).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** What an axis or a column says after its name. A ratio (unit "1") is shown in per cent. */
export function unitLabel(unit) {
  return unit === "1" ? "%" : unit || "";
}

/** A figure with the unit that `MetricInfo.unit` gives. */
export function figure(value, unit = "") {
  if (missing(value)) return NONE;
  if (unit === "") return number(value);
  if (unit === "1") return percent(value);
  if (unit === "USD") return usd(value);
  if (unit === "s") return duration(value);
  if (unit === "bytes") return bytes(value);
  return `${number(value)}${THIN}${unit}`;
}

/** `zero_variance` as words. */
export function words(name) {
  return name.replaceAll("_", " ");
}
